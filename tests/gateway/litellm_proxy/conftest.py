"""LiteLLM's proxy with the callback, in front of scripted servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.litellm_proxy.scripted_vllm import ScriptedVllm
from tests.support.litellm_proxy import LiteLlmProxy

MANIFEST = """\
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: pair}}
spec:
  model: acme
  draft: {{kind: ngram}}
  maxDraftTokens: 6
  engine: {{kind: vllm, endpoints: ["{url}"]}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: pair}}
spec:
  pair: pair
  holdBackShare: 0
  explorationShare: 0
  allowClientMode: true
"""
StartProxy = Callable[..., LiteLlmProxy]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test the time to install LiteLLM."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="module")
def start_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartProxy]:
    """Starts a proxy with the arguments of `LiteLlmProxy`; all are stopped after the module."""
    with contextlib.ExitStack() as stack:

        def start(**options: object) -> LiteLlmProxy:
            proxy = LiteLlmProxy(tmp_path_factory.mktemp("litellm"), **options)  # type: ignore[arg-type]
            stack.callback(proxy.stop)
            return proxy

        yield start


@pytest.fixture(scope="module")
def start_vllm() -> Iterator[Callable[..., ScriptedVllm]]:
    """Starts a scripted server; all are stopped after the module."""
    with contextlib.ExitStack() as stack:

        def start(**options: object) -> ScriptedVllm:
            server = ScriptedVllm(**options)  # type: ignore[arg-type]
            stack.callback(server.stop)
            return server

        yield start
