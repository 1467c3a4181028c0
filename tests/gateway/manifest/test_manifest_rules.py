"""What one object may not say, and what objects of several namespaces have to do with each other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import ManifestObject, parse_documents

JSON = dict[str, Any]

PAIR: JSON = {
    "apiVersion": "slipstream.dev/v1alpha1",
    "kind": "ModelPair",
    "metadata": {"name": "acme"},
    "spec": {
        "model": "acme",
        "target": {"source": "./target"},
        "draft": {"kind": "model", "source": "./draft"},
        "engine": {"kind": "slipstream"},
    },
}
POLICY: JSON = {
    "apiVersion": "slipstream.dev/v1alpha1",
    "kind": "SpeculationPolicy",
    "metadata": {"name": "acme"},
    "spec": {"pair": "acme"},
}


def changed(resource: JSON, spec: JSON | None = None, **metadata: Any) -> JSON:
    found = copy.deepcopy(resource)
    found["metadata"] |= metadata
    found["spec"] |= spec or {}
    return found


def problems(*documents: JSON) -> list[str]:
    """What is said of `documents`, without the file's name."""
    try:
        parse_documents(documents, name="m")
    except ManifestError as error:
        return [line.removeprefix("m: ") for line in error.problems]
    return []


def parsed(*documents: JSON) -> tuple[ManifestObject, ...]:
    return parse_documents(documents, name="m")


VLLM: JSON = {"kind": "vllm", "endpoints": ["http://a:1"]}
STARTED_VLLM: JSON = {"kind": "vllm"}
VLLM_IN_TRITON: JSON = {"kind": "vllm", "serving": "triton"}

REFUSED_PAIRS: list[tuple[JSON, str]] = [
    (
        {"draft": {"kind": "model", "source": "./target"}},
        "spec.draft.source: must be another checkpoint than the target's: a draft as slow as its target saves "
        "nothing, got './target'",
    ),
    (
        {"draft": {"kind": "model", "source": "./draft", "alternatives": ["./other", "./other"]}},
        "spec.draft.alternatives[1]: must be another checkpoint than the drafts before it, got './other'",
    ),
    (
        {"draft": {"kind": "model", "source": "./draft", "alternatives": ["hf://!"]}},
        "spec.draft.alternatives[0]: must be hf://",
    ),
    ({"draft": {"kind": "hybrid"}}, "spec.draft.source: is required for draft kind hybrid"),
    (
        {"draft": {"kind": "hybrid", "source": "./target"}},
        "spec.draft.source: must be another checkpoint than the target's: a draft as slow as its target saves "
        "nothing, got './target'",
    ),
    (
        {"engine": {"kind": "slipstream", "endpoints": ["grpc://a:1"]}, "serving": {}},
        "spec.serving: has no effect with spec.engine.endpoints, leave it out",
    ),
    (
        {"serving": {"tolerations": [{"key": "gpu", "operator": "Exists", "value": "a"}]}},
        "spec.serving.tolerations[0].value: has no effect with operator Exists, leave it out, got 'a'",
    ),
    (
        {"serving": {"tolerations": [{"value": "a"}]}},
        "spec.serving.tolerations[0].operator: must be Exists where there is no key, got 'Equal'",
    ),
    (
        {"serving": {"resources": {"requests": {"memory": "17G"}, "limits": {"memory": "15.8Gi"}}}},
        "spec.serving.resources.requests.memory: must be at most the limit 15.8Gi, got 17G",
    ),
    (
        {"serving": {"resources": {"limits": {"cpu": 4}}}},
        "spec.serving.resources.limits.cpu: must be a string (put it in quotes), got 4",
    ),
    (
        {"serving": {"resources": {"limits": {"c p u": "4"}}}},
        "spec.serving.resources.limits: a key must match ",
    ),
    ({"serving": {"nodeSelector": {1: "a"}}}, "spec.serving.nodeSelector: a key must be a string (put it in"),
    ({"serving": {"nodeSelector": {"a": "b c"}}}, "spec.serving.nodeSelector.a: must match "),
    ({"serving": {"nodeSelector": ["a"]}}, "spec.serving.nodeSelector: must be a mapping, got ['a']"),
    (
        {"serving": {"nodeSelector": {f"k{n}": "v" for n in range(33)}}},
        "spec.serving.nodeSelector: must have at most 32 entries, got 33",
    ),
    ({"serving": {"affinity": []}}, "spec.serving.affinity: must be a mapping, got []"),
    ({"serving": {"affinity": {"a": [{1: 2}]}}}, "spec.serving.affinity: must have strings as keys (put them in"),
    ({"serving": {"affinity": {"a": float("inf")}}}, "spec.serving.affinity: must have finite numbers, got inf"),
    ({"serving": {"affinity": {"a": 2**63}}}, "spec.serving.affinity: must have whole numbers of 64 bits, got 922"),
    ({"serving": {"affinity": {"a": "\ud800"}}}, "spec.serving.affinity: must not have lone surrogates, got"),
    ({"serving": {"affinity": {"a": b"x"}}}, "spec.serving.affinity: must have JSON types only, got b'x'"),
    ({"serving": {"storage": {"claim": "w", "mountPath": "a"}}}, "spec.serving.storage.mountPath: must match"),
    ({"serving": {"image": "a b"}}, "spec.serving.image: must match"),
    (
        {"engine": {"kind": "vllm"}, "target": None},
        "spec.target: is required for engine kind vllm without spec.engine.endpoints",
    ),
    (
        {"engine": {"kind": "vllm"}, "draft": None},
        "spec.draft: is required for engine kind vllm without spec.engine.endpoints; kind none for a target alone",
    ),
    (
        {"engine": VLLM, "draft": {"kind": "hybrid", "source": "./draft"}},
        "spec.draft.kind: hybrid is for engine kind slipstream: vLLM has one draft",
    ),
    (
        {"engine": VLLM, "draft": {"kind": "model", "source": "./draft", "alternatives": ["./other"]}},
        "spec.draft.alternatives: is for engine kind slipstream: vLLM has one draft",
    ),
    (
        {"engine": VLLM, "draft": {"kind": "model", "source": "./draft", "candidates": "./trained"}},
        "spec.draft.candidates: is for engine kind slipstream: vLLM has one draft",
    ),
    (
        {"engine": VLLM, "draft": {"kind": "model"}},
        "spec.draft.source: is required for draft kind model",
    ),
    (
        {"engine": VLLM | {"endpoints": ["grpc://a:1"]}},
        "spec.engine.endpoints[0]: must be http://host:port or https://host:port, got 'grpc://a:1'",
    ),
    (
        {"engine": VLLM_IN_TRITON | {"endpoints": ["http://a:1"]}},
        "spec.engine.endpoints[0]: must be grpc://host:port or grpcs://host:port, got 'http://a:1'",
    ),
    (
        {"engine": VLLM | {"endpoints": ["http://a:1"] * 2}},
        "spec.engine.endpoints[1]: is listed twice: 'http://a:1'",
    ),
    (
        {"engine": VLLM | {"serving": "grpc"}},
        "spec.engine.serving: must be openai or triton, got 'grpc'",
    ),
    ({"engine": VLLM | {"apiKeyEnv": "A B"}}, "spec.engine.apiKeyEnv: must match"),
    (
        {"engine": STARTED_VLLM | {"tensorParallelSize": 4}, "serving": {"gpus": 8}},
        "spec.serving.gpus: must be as many GPUs as vLLM uses: gpus × nodes (1) = tensorParallelSize (4) × "
        "pipelineParallelSize (1), got 8",
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"gpus": 4}},
        "spec.serving.gpus: must be as many GPUs as vLLM uses: gpus × nodes (1) = tensorParallelSize (1) × "
        "pipelineParallelSize (1), got 4",
    ),
    (
        {
            "engine": STARTED_VLLM | {"tensorParallelSize": 8, "pipelineParallelSize": 2},
            "serving": {"gpus": 4, "nodes": 2},
        },
        "spec.serving.gpus: must be as many GPUs as vLLM uses: gpus × nodes (2) = tensorParallelSize (8) × "
        "pipelineParallelSize (2), got 4",
    ),
    (
        {"engine": STARTED_VLLM | {"pipelineParallelSize": 3}, "serving": {"gpus": 0, "nodes": 2}},
        "spec.serving.nodes: must divide the processes of vLLM: tensorParallelSize (1) × pipelineParallelSize (3), "
        "got 2",
    ),
    (
        {"engine": STARTED_VLLM | {"arguments": ["--port=1"]}},
        "spec.engine.arguments[0]: is set by Slipstream, leave it out, got '--port=1'",
    ),
    (
        {"engine": STARTED_VLLM | {"arguments": ["--enable-prefix-caching", "--speculative_config.method", "x"]}},
        "spec.engine.arguments[1]: is set by Slipstream, leave it out, got '--speculative_config.method'",
    ),
    (
        {"engine": STARTED_VLLM | {"arguments": ["-tp", "4"]}},
        "spec.engine.arguments[0]: must be the long form of an argument, got '-tp'",
    ),
    *(
        ({"engine": STARTED_VLLM | {"arguments": [argument]}}, f"spec.engine.arguments[0]: {message}")
        for argument, message in (
            ("--tensor-parallel-size=4", "is set by spec.engine.tensorParallelSize"),
            ("-n2", "must be the long form"),
            ("--data-parallel-size=2", "is not supported: Slipstream reserves no GPUs for such ranks"),
            ("--data_parallel_size_local=2", "is not supported: Slipstream reserves no GPUs for such ranks"),
            ("-dp=2", "is not supported: Slipstream reserves no GPUs for such ranks"),
            ("--prefill_context_parallel_size=2", "is set by Slipstream"),
            ("--ssl-keyfile=/x", "is set by Slipstream"),
            ("--grpc", "is set by Slipstream"),
            ("--master-port=1", "is set by Slipstream"),
        )
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"env": [{"name": "LWS_GROUP_SIZE", "value": "9"}]}},
        "spec.serving.env[0].name: is set by Slipstream, leave it out, got 'LWS_GROUP_SIZE'",
    ),
    (
        {"engine": STARTED_VLLM | {"quantization": "FP 8"}},
        "spec.engine.quantization: must match",
    ),
    (
        {"engine": STARTED_VLLM, "draft": {"kind": "eagle3"}},
        "spec.draft.source: is required for draft kind eagle3",
    ),
    (
        {"engine": STARTED_VLLM, "draft": {"kind": "model", "source": "./x", "tokenizer": "./y"}},
        "spec.draft.tokenizer: has no effect with engine kind vllm, which uses the tokenizer in spec.draft.source",
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"env": [{"name": "A"}]}},
        "spec.serving.env[0]: needs either value or secret",
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "spec.serving.env[1].name: is listed twice: 'A'",
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"env": [{"name": "HOME", "value": "/"}]}},
        "spec.serving.env[0].name: is set by Slipstream, leave it out, got 'HOME'",
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"labels": {"slipstream.dev/pair": "x"}}},
        "spec.serving.labels.slipstream.dev/pair: is set by Slipstream, leave it out",
    ),
    (
        {"engine": STARTED_VLLM, "serving": {"imagePullSecrets": ["No!"]}},
        "spec.serving.imagePullSecrets[0]: must match",
    ),
    ({"engine": VLLM | {"plain": {}}}, "spec.engine.plain.endpoints: is required"),
    (
        {"engine": VLLM | {"plain": {"endpoints": ["http://u:secret@b:1"]}}},
        "spec.engine.plain.endpoints[0]: must not hold credentials; use apiKeyEnv, got an address with an @",
    ),
    (
        {"engine": VLLM | {"plain": {"endpoints": ["http://a:1"]}}},
        "spec.engine.plain.endpoints[0]: must be a server without speculation, none of spec.engine.endpoints, got "
        "'http://a:1'",
    ),
    ({"engine": VLLM | {"device": "cpu"}}, "spec.engine.device: unknown field"),
    (
        {"engine": {"kind": "tgi"}},
        "spec.engine.kind: must be slipstream, vllm or external, got 'tgi'",
    ),
    ({"draft": {"kind": "eagle3", "source": "./head"}}, "spec.draft.kind: eagle3 is for engine kind vllm"),
    ({"serving": {"gpus": 4}}, "spec.serving.gpus: must be at most 1: Slipstream's engine uses one GPU, got 4"),
    ({"serving": {"nodes": 2}}, "spec.serving.nodes: must be at most 1: Slipstream's engine uses one GPU, got 2"),
]


@pytest.mark.parametrize(("spec", "expected"), REFUSED_PAIRS)
def test_a_pair_that_contradicts_itself_is_refused(spec: JSON, expected: str) -> None:
    [line] = problems(changed(PAIR, spec))
    assert line.startswith(f"ModelPair/acme: {expected}")


WITHOUT_EFFECT: list[tuple[JSON, str, str]] = [
    ({"draft": {"kind": "ngram", "tokenizer": "./t"}}, "draft.tokenizer", "with draft kind ngram"),
    ({"draft": {"kind": "ngram", "alternatives": ["./other"]}}, "draft.alternatives", "with draft kind ngram"),
    ({"draft": {"kind": "ngram", "candidates": "./trained"}}, "draft.candidates", "with draft kind ngram"),
    ({"draft": {"kind": "none", "revision": "1"}}, "draft.revision", "with draft kind none"),
    (
        {"serving": {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]}},
        "serving.tolerations[0].tolerationSeconds",
        "without effect NoExecute",
    ),
    ({"engine": VLLM | {"tritonModel": "m"}}, "engine.tritonModel", "with serving openai"),
    ({"engine": VLLM_IN_TRITON | {"model": "m"}}, "engine.model", "with serving triton"),
    ({"engine": VLLM_IN_TRITON | {"apiKeyEnv": "KEY"}}, "engine.apiKeyEnv", "with serving triton"),
    ({"engine": VLLM, "serving": {}}, "serving", "with spec.engine.endpoints"),
    ({"engine": VLLM_IN_TRITON, "serving": {}}, "serving", "with serving triton"),
    ({"engine": VLLM | {"tensorParallelSize": 2}}, "engine.tensorParallelSize", "with spec.engine.endpoints"),
    (
        {"engine": VLLM_IN_TRITON | {"arguments": ["--enable-prefix-caching"]}},
        "engine.arguments",
        "with serving triton",
    ),
    (
        {"engine": STARTED_VLLM, "draft": {"kind": "suffix", "source": "./x"}},
        "draft.source",
        "with draft kind suffix",
    ),
    (
        {"engine": VLLM | {"plain": {"endpoints": ["http://b:1"]}}, "draft": {"kind": "none"}},
        "engine.plain",
        "with draft kind none",
    ),
]


@pytest.mark.parametrize(("spec", "field", "why"), WITHOUT_EFFECT)
def test_a_field_of_a_pair_that_has_no_effect_is_refused(spec: JSON, field: str, why: str) -> None:
    assert problems(changed(PAIR, spec)) == [f"ModelPair/acme: spec.{field}: has no effect {why}, leave it out"]


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": STARTED_VLLM | {"tensorParallelSize": 4}, "serving": {"gpus": 4}},
        {
            "engine": STARTED_VLLM | {"tensorParallelSize": 8, "pipelineParallelSize": 2},
            "serving": {"gpus": 8, "nodes": 2},
        },
        {"engine": STARTED_VLLM | {"tensorParallelSize": 2}, "serving": {"gpus": 0}},
        {"engine": STARTED_VLLM | {"arguments": ["--max-num-batched-tokens=8192", "--seed", "-1"]}},
        {"engine": STARTED_VLLM, "draft": {"kind": "mtp"}},
        {"engine": STARTED_VLLM, "draft": {"kind": "mtp", "source": "./layers"}},
        {"engine": STARTED_VLLM, "draft": {"kind": "eagle3", "source": "./head", "revision": "2"}},
        {"engine": STARTED_VLLM, "serving": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}},
        {
            "engine": STARTED_VLLM,
            "serving": {"annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}},
        },
        {"engine": VLLM, "draft": {"kind": "model", "source": "./draft", "tokenizer": "./t"}},
    ],
)
def test_pairs_that_vllm_can_serve_are_accepted(spec: JSON) -> None:
    assert problems(changed(PAIR, spec)) == []


def test_pairs_that_vllm_serves_in_one_local_triton_need_models_of_their_own() -> None:
    first = changed(PAIR, {"engine": VLLM_IN_TRITON})
    second = changed(PAIR, {"model": "other", "engine": {"kind": "slipstream", "tritonModel": "acme"}}, name="other")
    assert problems(first, second) == [
        "ModelPair/other: spec.engine.tritonModel: ModelPair/acme already has the Triton model 'acme'"
    ]
    assert problems(changed(first, {"engine": {"kind": "vllm"}}), second) == []


def test_a_policy_may_ask_for_acceptance_of_drafts_that_the_manifest_does_not_name() -> None:
    served = changed(PAIR, {"engine": VLLM, "target": None, "draft": None})
    assert problems(served, changed(POLICY, {"thresholds": {"acceptanceFloor": 0.5}})) == []


def test_free_form_fields_are_bounded_in_depth() -> None:
    deep: JSON = {}
    for _ in range(2000):
        deep = {"a": deep}
    [line] = problems(changed(PAIR, {"serving": {"affinity": deep}}))
    assert line.endswith("spec.serving.affinity: must not be nested deeper than 24 levels")


def test_affinity_is_taken_as_it_is() -> None:
    affinity = {"nodeAffinity": {"x": [1, 2.5, "a", None, True, {}]}}
    [pair] = parsed(changed(PAIR, {"serving": {"affinity": affinity, "nodeSelector": {"example.com/gpu": "h100"}}}))
    assert pair.spec.serving.affinity == affinity  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "draft",
    [
        {"kind": "model", "source": "./target", "revision": "small"},
        {"kind": "ngram"},
        {"kind": "model", "source": "./draft", "tokenizer": "./t"},
    ],
)
def test_a_draft_is_another_checkpoint_by_source_or_revision(draft: JSON) -> None:
    assert problems(changed(PAIR, {"draft": draft})) == []


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {"cpu": "500m"}, "limits": {"cpu": "0.5"}},
        {"requests": {"memory": "16Gi"}, "limits": {"memory": "18G"}},
        {"requests": {"cpu": "1"}, "limits": {"memory": "1"}},
    ],
)
def test_amounts_are_compared_by_what_they_mean(resources: JSON) -> None:
    assert problems(changed(PAIR, {"serving": {"resources": resources}})) == []


REFUSED_POLICIES: list[tuple[JSON, str]] = [
    (
        {"rollout": {"steps": [{"share": 0.1}, {"share": 0.5}, {"share": 0.5}]}},
        "spec.rollout.steps[2].share: must be above the step before (0.5), got 0.5",
    ),
    (
        {"maxHoldBackShare": 0.01},
        "spec.maxHoldBackShare: must be at least holdBackShare (0.02), got 0.01",
    ),
    (
        {"rollback": {"coolDownSeconds": 90_000}},
        "spec.rollback.coolDownSeconds: must be at most maxCoolDownSeconds (86400), got 90000",
    ),
    (
        {"thresholds": {"p95Seconds": 2, "ttftP95Seconds": 2.5}},
        "spec.thresholds.ttftP95Seconds: must be at most p95Seconds (2), got 2.5",
    ),
    (
        {"thresholds": {"p95Seconds": 2}, "classes": [{"name": "code", "thresholds": {"ttftP95Seconds": 3}}]},
        "spec.classes[0].thresholds.ttftP95Seconds: must be at most p95Seconds (2), got 3",
    ),
    (
        {"thresholds": {"ttftP95Seconds": 2}, "classes": [{"name": "code", "thresholds": {"p95Seconds": 1}}]},
        "spec.classes[0].thresholds.ttftP95Seconds: must be at most p95Seconds (1), got 2",
    ),
    (
        {"classes": [{"name": "code", "mode": "plain", "thresholds": {"errorRate": 0.1}}]},
        "spec.classes[0].thresholds: has no effect with mode plain, leave it out",
    ),
    (
        {"parityShare": 0, "thresholds": {"parityLoss": 0.01}},
        "spec.thresholds.parityLoss: needs spec.parityShare above 0, got 0: no answer is replayed",
    ),
    (
        {"parityShare": 0, "classes": [{"name": "code", "thresholds": {"parityLoss": 0}}]},
        "spec.classes[0].thresholds.parityLoss: needs spec.parityShare above 0, got 0: no answer is replayed",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), REFUSED_POLICIES)
def test_a_policy_that_contradicts_itself_is_refused(spec: JSON, expected: str) -> None:
    assert problems(PAIR, changed(POLICY, spec)) == [f"SpeculationPolicy/acme: {expected}"]


def test_a_class_may_loosen_what_the_policy_says() -> None:
    thresholds = {"p95Seconds": 2, "ttftP95Seconds": 1}
    classes = [{"name": "code", "thresholds": {"p95Seconds": 9, "ttftP95Seconds": 5}}, {"name": "creative_writing"}]
    assert problems(PAIR, changed(POLICY, {"thresholds": thresholds, "classes": classes})) == []


def test_an_acceptance_floor_needs_a_draft() -> None:
    spec = {
        "thresholds": {"acceptanceFloor": 0.5},
        "classes": [{"name": "code", "thresholds": {"acceptanceFloor": 0.6}}],
    }
    assert problems(changed(PAIR, {"draft": {"kind": "ngram"}}), changed(POLICY, spec)) == []
    why = "has no effect: ModelPair/acme has no draft"
    assert problems(changed(PAIR, {"draft": {"kind": "none"}}), changed(POLICY, spec)) == [
        f"SpeculationPolicy/acme: spec.thresholds.acceptanceFloor: {why}",
        f"SpeculationPolicy/acme: spec.classes[0].thresholds.acceptanceFloor: {why}",
    ]


def test_objects_are_told_apart_by_their_namespaces() -> None:
    here, there = (changed(PAIR, {"model": name, "draft": {"kind": "none"}}, namespace=name) for name in ("a", "b"))
    there["spec"]["engine"] = {"kind": "slipstream", "tritonModel": "other"}
    policies = [changed(POLICY, namespace=name) for name in ("a", "b")]
    pair, other, policy, _ = parsed(here, there, *policies)
    assert (pair.metadata.key, other.metadata.key, policy.metadata.key) == ("a/acme", "b/acme", "a/acme")
    assert "ModelPair/acme: metadata.name: another ModelPair has the name 'a/acme'" in problems(here, here)


def test_a_policy_finds_its_pair_in_its_own_namespace_only() -> None:
    pairs = [changed(PAIR, {"model": "x"}, name="x", namespace="a"), changed(PAIR, {"model": "y"}, name="y")]
    for policy, there_is in ((changed(POLICY, namespace="a"), "x"), (POLICY, "y")):
        assert problems(*pairs, policy) == [
            f"SpeculationPolicy/acme: spec.pair: no ModelPair is named 'acme' (known: {there_is})"
        ]


def test_what_a_cluster_says_of_an_object_does_not_keep_it_from_being_a_file() -> None:
    exported = changed(PAIR, uid="1", generation=4, managedFields=[]) | {"status": {"state": "Serving", "odd": [1]}}
    assert parsed(exported) == parsed(PAIR)
    assert problems(exported | {"data": 1}) == ["ModelPair/acme: data: unknown field; did you mean metadata?"]
