"""ModelPairs and SpeculationPolicies as a user writes them."""

from __future__ import annotations

import json
from typing import Any

JSON = dict[str, Any]
_API = "slipstream.dev/v1alpha1"
EMBEDDED = ('target: {source: "embedded:target"}', 'draft: {kind: model, source: "embedded:draft"}')
"""The fields of the embedded pair."""


def manifest(kind: str, name: str, spec: JSON, **metadata: Any) -> JSON:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def pair_yaml(engine: str, *fields: str, name: str = "pair", model: str = "acme", policy: str | None = None) -> str:
    """Text of a manifest: a pair for the clients' model `model`, and its policy where there is one.

    `engine` and `fields`, such as `maxDraftTokens: 4`, are of the pair's spec. `policy` follows `pair: NAME` in the
    policy's spec: `, parityShare: 0`.
    """
    lines = [f"apiVersion: {_API}", "kind: ModelPair", f"metadata: {{name: {name}}}", "spec:", f"  model: {model}"]
    lines += [f"  {field}" for field in (*fields, f"engine: {engine}")]
    if policy is not None:
        lines += ["---", f"apiVersion: {_API}", "kind: SpeculationPolicy", f"metadata: {{name: {name}}}"]
        lines.append(f"spec: {{pair: {name}{policy}}}")
    return "\n".join([*lines, ""])


def arm(*endpoints: str, model: str = "acme", protocol: str = "openai", more: str = "") -> str:
    """An arm of an external engine."""
    return f"{{protocol: {protocol}, model: {model}, endpoints: {json.dumps(endpoints)}{more}}}"


def external(plain: str, speculative: str | None = None) -> str:
    """An engine that runs elsewhere, by its arms."""
    second = "" if speculative is None else f", speculative: {speculative}"
    return f"{{kind: external, arms: {{plain: {plain}{second}}}}}"
