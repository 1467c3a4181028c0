"""ModelPairs and what a cluster says of their servers, as the API server has them."""

from __future__ import annotations

import copy
import json
from typing import Any

from slipstream_core.manifest import ModelPair
from slipstream_core.manifest.resources import parse_resource
from slipstream_operator.children.all import children_of
from slipstream_operator.types import ServingDefaults

from tests.support.manifests import manifest

JSON = dict[str, Any]

UID = "7f3c2f0e-0000-4000-8000-000000000001"
SPEC: JSON = {
    "model": "acme-8b",
    "target": {"source": "acme/target", "revision": "1"},
    "draft": {"kind": "model", "source": "acme/draft"},
    "engine": {"kind": "slipstream"},
    "serving": {"replicas": 2, "storage": {"claim": "weights"}},
}
EMBEDDED_SPEC: JSON = {
    "model": "demo",
    "target": {"source": "embedded:target"},
    "draft": {"kind": "model", "source": "embedded:draft"},
    "engine": {"kind": "slipstream", "device": "cpu"},
}
VLLM_SPEC: JSON = {
    "model": "acme-70b",
    "target": {"source": "acme/target", "revision": "1"},
    "draft": {"kind": "eagle3", "source": "acme/head"},
    "maxDraftTokens": 3,
    "engine": {"kind": "vllm"},
    "serving": {"storage": {"claim": "weights"}},
}
GROUP_SPEC: JSON = {
    **VLLM_SPEC,
    "engine": {"kind": "vllm", "tensorParallelSize": 8, "pipelineParallelSize": 2},
    "serving": {"gpus": 8, "nodes": 2, "storage": {"claim": "weights"}},
}
EXTERNAL_SPEC: JSON = {
    "model": "demo",
    "engine": {
        "kind": "external",
        "arms": {"plain": {"protocol": "openai", "endpoints": ["http://vllm:8000"], "model": "demo"}},
    },
}


def pair_object(
    spec: JSON | None = None, *, name: str = "acme", namespace: str = "prod", generation: int = 1, **changes: Any
) -> JSON:
    """A ModelPair. `changes` are fields of its spec; a field in `serving` or another mapping is merged into it."""
    merged = copy.deepcopy(SPEC if spec is None else spec)
    for field, value in changes.items():
        known = merged.get(field)
        merged[field] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return manifest("ModelPair", name, merged, namespace=namespace, uid=UID, generation=generation)


def children(raw: JSON, *, live: JSON | None = None, **defaults: Any) -> dict[str, JSON]:
    """The children of the accepted pair `raw` by kind."""
    parsed = parse_resource(raw)
    assert isinstance(parsed.item, ModelPair), parsed.problems
    uid = raw["metadata"]["uid"]
    made = children_of(parsed.item, uid=uid, defaults=ServingDefaults(**defaults), live=live)
    return {child["kind"]: child for child in made}


def template(raw: JSON) -> JSON:
    """The pod template of the pair's Deployment."""
    found: JSON = children(raw)["Deployment"]["spec"]["template"]
    return found


def live_deployment(raw: JSON, *, replicas: int = 2, ready: int = 2, updated: int | None = None) -> JSON:
    """The pair's Deployment as its controller reports it."""
    made = children(raw)["Deployment"]
    made["metadata"]["generation"] = 1
    made["spec"]["replicas"] = replicas
    made["status"] = {
        "observedGeneration": 1,
        "replicas": replicas,
        "updatedReplicas": replicas if updated is None else updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    return made


def pod(raw: JSON, name: str = "acme-1", **status: Any) -> JSON:
    """A pod of the pair's current template."""
    return {"metadata": {"name": name, **template(raw)["metadata"]}, "status": status}


def preflight_ended(*, compatible: bool, message: str) -> JSON:
    """The status of a preflight container that has compared the tokenizers."""
    report = json.dumps({"tokenizerCompatible": compatible, "message": message})
    return preflight_status(exit_code=0, message=report)


def preflight_status(*, exit_code: int, message: str) -> JSON:
    """The status of a preflight container that has ended."""
    ended = {"exitCode": exit_code, "reason": "Completed" if exit_code == 0 else "Error", "message": message}
    return {"name": "preflight", "ready": exit_code == 0, "restartCount": 0, "state": {"terminated": ended}}
