"""A model pair in front of one vLLM server."""

from __future__ import annotations

import json


def vllm_pair(name: str, url: str, *, longest: int = 4, policy: str | None = "") -> str:
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
