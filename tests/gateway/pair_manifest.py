"""A model pair in front of OpenAI-compatible servers, and the chats that it serves."""

from __future__ import annotations

from typing import Any

from tests.support.manifests import arm, external, pair_yaml


def manifest_text(
    plain: list[str], speculative: list[str] | None = None, *, upstream_model: str = "acme", policy: str = ""
) -> str:
    """Text of a manifest for the model `acme` in front of OpenAI-compatible servers."""
    arms = [arm(*urls, model=upstream_model) for urls in (plain, speculative) if urls is not None]
    return pair_yaml(external(*arms), "maxDraftTokens: 5", policy=f", allowClientMode: true{policy}")


def chat(script: str, **more: Any) -> dict[str, Any]:
    """A chat body whose last message is `script`."""
    return {"model": "acme", "messages": [{"role": "user", "content": script}], **more}
