"""Objects of the manifest's kinds as a cluster holds them, for tests that change single fields."""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]


def resource(kind: str, spec: JSON, **metadata: Any) -> JSON:
    return {"apiVersion": "slipstream.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def pair_spec(model: str, **more: Any) -> JSON:
    """The spec of a pair that Slipstream's engine serves with an n-gram draft."""
    parts = {"target": {"source": "./target"}, "draft": {"kind": "ngram"}, "engine": {"kind": "slipstream"}}
    return {"model": model, **parts, **more}
