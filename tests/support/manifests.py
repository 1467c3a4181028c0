"""ModelPairs and SpeculationPolicies as a user writes them."""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]


def manifest(kind: str, name: str, spec: JSON, **metadata: Any) -> JSON:
    return {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }
