"""The objects of a pair of the embedded models, served by vLLM in a cluster."""

from __future__ import annotations

import yaml
from slipstream_engine.embedded import TARGET_DIR

from tests.support.manifests import JSON, pair_yaml

PATIENCE_S = 600.0  # vLLM shares the cores: a server's first check may exceed its 120 s, and begins again

OBJECTS = pair_yaml(
    "{kind: vllm, dtype: float32, maxModelLen: 512, maxNumSeqs: 8, arguments: [--enforce-eager]}",
    "target: {source: target}",
    "draft: {kind: model, source: draft}",
    "maxDraftTokens: 4",
    f'serving: {{gpus: 0, drainSeconds: 5, storage: {{claim: weights, mountPath: "{TARGET_DIR.parent}"}}}}',
    name="support",
    model="support",
    policy=", allowClientMode: true, maxTemperature: 2, parityShare: 0",
)


def with_group(objects: str, *, replicas: int = 1) -> list[JSON]:
    """`objects` with `replicas` servers of two nodes, each of which has half of every layer."""
    pair, *others = yaml.safe_load_all(objects)
    pair["spec"]["engine"]["tensorParallelSize"] = 2
    pair["spec"]["serving"] |= {"nodes": 2, "replicas": replicas}
    return [pair, *others]


def with_canary() -> str:
    """The objects, whose new revisions first get half of the requests."""
    pair, policy = yaml.safe_load_all(OBJECTS)
    canary = {"share": 0.5, "minSamples": 20, "maxSlowdown": 0.5, "errorRate": 0.1, "parityLoss": 0.2}
    pair["spec"]["serving"]["update"] = {"canary": canary}
    policy["spec"] |= {"decision": "rules", "minOutputTokens": 0, "maxRareTokenShare": 1, "minConfidence": 0}
    policy["spec"]["parityShare"] = 1  # ten answers must be compared
    return yaml.safe_dump_all([pair, policy])
