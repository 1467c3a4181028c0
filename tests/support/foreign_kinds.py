"""Kinds of other projects: as published, from the folder in SLIPSTREAM_FOREIGN_KINDS, else as far as they are used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from tests.support.manifests import JSON

VARIABLE = "SLIPSTREAM_FOREIGN_KINDS"
WITH_GROUPS = frozenset({"LeaderWorkerSet"})
"""The foreign kinds of a cluster that can run servers of several nodes."""


def published(plural: str) -> JSON | None:
    """The published definition; None without the folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    found: JSON = next(yaml.safe_load_all(Path(folder, f"{plural}.yaml").read_text(encoding="utf-8")))
    _fill_empty_defaults(found)
    return found


def _fill_empty_defaults(node: Any) -> None:
    """Old API servers take a default of "" for null and refuse it, but a key of a list needs a default. None of those
    fields is left out by the objects of the tests."""
    if isinstance(node, dict):
        if node.get("default") == "":
            node["default"] = "none"
        for child in node.values():
            _fill_empty_defaults(child)
    elif isinstance(node, list):
        for child in node:
            _fill_empty_defaults(child)


def leader_worker_sets() -> JSON:
    """The definition of LeaderWorkerSet (kubernetes-sigs/lws)."""
    return published("leaderworkersets") or {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "leaderworkersets.leaderworkerset.x-k8s.io"},
        "spec": {
            "group": "leaderworkerset.x-k8s.io",
            "names": {"kind": "LeaderWorkerSet", "plural": "leaderworkersets", "singular": "leaderworkerset"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.hpaPodSelector",
                        },
                    },
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": True,
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "x-kubernetes-preserve-unknown-fields": True,
                                    "properties": {"replicas": {"type": "integer", "default": 1}},
                                }
                            },
                        },
                    },
                }
            ],
        },
    }


def scaled_objects() -> JSON:
    """The definition of ScaledObject (kedacore/keda)."""
    return published("scaledobjects") or _unchecked("keda.sh", "v1alpha1", "ScaledObject")


def inference_pools() -> JSON:
    """The definition of InferencePool (kubernetes-sigs/gateway-api-inference-extension)."""
    return published("inferencepools") or _unchecked("inference.networking.k8s.io", "v1", "InferencePool")


def http_routes() -> JSON:
    """The definition of HTTPRoute (kubernetes-sigs/gateway-api)."""
    return published("httproutes") or _unchecked("gateway.networking.k8s.io", "v1", "HTTPRoute")


def _unchecked(group: str, version: str, kind: str) -> JSON:
    """A kind whose objects may contain anything."""
    singular = kind.lower()
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{singular}s.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": f"{singular}s", "singular": singular},
            "scope": "Namespaced",
            "versions": [served | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


def parts_of_kubernetes(child: JSON) -> list[JSON]:
    """`child`, or the templates of a LeaderWorkerSet as objects of Kubernetes' own, whose schemas are known here."""
    if child["kind"] != "LeaderWorkerSet":
        return [child]
    found = (child["spec"]["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate"))
    return [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
        for template in found
    ]
