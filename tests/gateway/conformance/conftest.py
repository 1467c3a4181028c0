"""Scripted engines, and manifests in front of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.gateway.conformance.scripted_engine import ScriptedEngine


def _pair(name: str, url: str, *, longest: int = 4, policy: str | None = "") -> str:
    """A pair that one vLLM server serves; `policy` is what its policy says beyond the defaults, None: it has none."""
    engine = f"{{kind: vllm, model: up, endpoints: {json.dumps([url])}}}"
    spec = f"{{model: {name}, maxDraftTokens: {longest}, engine: {engine}}}"
    head = f"apiVersion: slipstream.dev/v1alpha1\nkind: ModelPair\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    if policy is None:
        return head
    return (
        f"{head}---\napiVersion: slipstream.dev/v1alpha1\nkind: SpeculationPolicy\nmetadata: {{name: {name}}}\n"
        f"spec: {{pair: {name}, allowClientMode: true, parityShare: 0{policy}}}\n"
    )


@pytest.fixture(scope="session")
def vllm_pair() -> Callable[..., str]:
    """Text of a manifest for the model `name` in front of one vLLM server."""
    return _pair


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    started = ScriptedEngine()
    yield started
    started.stop()
