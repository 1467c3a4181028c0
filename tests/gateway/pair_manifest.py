"""A model pair in front of OpenAI-compatible servers, and the chats that it serves."""

from __future__ import annotations

import json
from typing import Any


def manifest_text(
    plain: list[str], speculative: list[str] | None = None, *, upstream_model: str = "acme", policy: str = ""
) -> str:
    """Text of a manifest for the model `acme` in front of OpenAI-compatible servers."""
    arm = "{{protocol: openai, model: {}, endpoints: {}}}".format
    lines = [
        "apiVersion: slipstream.dev/v1alpha1",
        "kind: ModelPair",
        "metadata: {name: pair}",
        "spec:",
        "  model: acme",
        "  maxDraftTokens: 5",
        "  engine:",
        "    kind: external",
        "    arms:",
        f"      plain: {arm(upstream_model, json.dumps(plain))}",
    ]
    if speculative is not None:
        lines.append(f"      speculative: {arm(upstream_model, json.dumps(speculative))}")
    lines += ["---", "apiVersion: slipstream.dev/v1alpha1", "kind: SpeculationPolicy", "metadata: {name: pair}"]
    lines += [f"spec: {{pair: pair, allowClientMode: true{policy}}}", ""]
    return "\n".join(lines)


def chat(script: str, **more: Any) -> dict[str, Any]:
    """A chat body whose last message is `script`."""
    return {"model": "acme", "messages": [{"role": "user", "content": script}], **more}
