"""The kinds as Kubernetes gets them: the chart, the shape of the schemas, and what every rule refuses."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from helm_python.chart import Chart
from slipstream_core.manifest import parse_resource
from slipstream_core.manifest.crd import crds, templates
from slipstream_core.manifest.sources import FORMS

from tests.support.crd_schema import example_resources, rules_of, schema_errors, violated
from tests.support.manifests import manifest

JSON = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "slipstream-crds"
EXAMPLES = example_resources()
SCHEMAS: dict[str, JSON] = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in crds()
}


def nodes(schema: JSON, path: str = "") -> Iterator[tuple[str, JSON]]:
    """All schemas below `schema`, with their paths."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}".lstrip("."))
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


SPEC_NODES = [
    pytest.param(node, id=f"{kind}.{path}")
    for kind, schema in SCHEMAS.items()
    for path, node in nodes(schema["properties"]["spec"], "spec")
]


def rendered(values: JSON | None = None) -> dict[str, JSON]:
    with Chart.load(CHART) as chart:
        files = chart.render(values or {}, name="crds", namespace="default")
    documents = [yaml.safe_load(text) for path, text in files.items() if path.endswith(".yaml")]
    return {item["metadata"]["name"]: item for item in documents}


def test_the_chart_installs_what_the_types_say() -> None:
    expected = {crd["metadata"]["name"]: crd for crd in crds()}
    found = rendered()
    assert found.keys() == expected.keys()
    for name, crd in expected.items():
        assert {key: found[name][key] for key in ("apiVersion", "kind", "spec")} == {
            key: crd[key] for key in ("apiVersion", "kind", "spec")
        }


def test_the_charts_files_are_the_generators() -> None:
    on_disk = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
    assert on_disk == templates(), "run: python -m slipstream_core.manifest.crd charts/slipstream-crds/templates"


def test_the_generators_command_writes_the_templates(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipstream_core.manifest.crd", str(tmp_path / "templates")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert {path.name: path.read_text() for path in (tmp_path / "templates").iterdir()} == templates()


def test_helm_keeps_the_kinds_when_the_chart_goes() -> None:
    labels = {"team": "inference"}
    for crd in rendered({"labels": labels, "annotations": {"example.com/note": "yes"}}).values():
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep", "example.com/note": "yes"}
        assert labels.items() <= crd["metadata"]["labels"].items()


@pytest.mark.parametrize("values", [{"label": {}}, {"labels": {"a": 1}}, {"annotations": []}])
def test_values_that_the_chart_does_not_have_are_refused(values: JSON) -> None:
    with Chart.load(CHART) as chart, pytest.raises(helm_python.HelmError):
        chart.validate_schema(values)


def test_helm_has_nothing_to_say_against_the_chart() -> None:
    assert [message for message in helm_python.lint(CHART)["messages"] if "icon" not in str(message)] == []


@pytest.mark.parametrize("node", SPEC_NODES)
def test_a_field_is_described_and_bounded_and_has_no_default(node: JSON) -> None:
    assert not {"$ref", "default", "anyOf", "oneOf", "allOf"} & node.keys()
    match node["type"]:
        case "string":
            assert "enum" in node or "maxLength" in node
        case "array":
            assert "maxItems" in node
            assert node["x-kubernetes-list-type"] in ("atomic", "set", "map")
        case "integer" | "number":
            assert {"minimum", "maximum", "format"} <= node.keys()
        case kind:
            assert kind in ("boolean", "object")
            assert "additionalProperties" not in node or "maxProperties" in node


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_of_spec_and_status_is_described(kind: str) -> None:
    for path, node in nodes({"properties": {key: SCHEMAS[kind]["properties"][key] for key in ("spec", "status")}}):
        for name, field in node.get("properties", {}).items():
            assert field.get("description"), f"{path}.{name}"


def test_null_is_only_for_what_it_says_something_of() -> None:
    nullable = {
        path for schema in SCHEMAS.values() for path, node in nodes(schema["properties"]["spec"]) if "nullable" in node
    }
    assert nullable == {"killSwitch", "maxCostIncrease"}


def test_only_affinity_is_free_form() -> None:
    free = {
        path
        for schema in SCHEMAS.values()
        for path, node in nodes(schema)
        if "x-kubernetes-preserve-unknown-fields" in node
    }
    assert free == {"spec.serving.affinity"}


# What the loops of the rules go over, from where the rule stands.
LOOPS = {
    "rule": "classes[]",
    "other": "classes[]",
    "adapter": "engine.adapters[]",
    "namesake": "engine.adapters[]",
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_rule_speaks_of_fields_that_there_are(kind: str) -> None:
    known = {path for path, _ in nodes(SCHEMAS[kind])}
    for place, rule in rules_of(SCHEMAS[kind]):
        for loop, fields in re.findall(rf"\b(self|{'|'.join(LOOPS)})((?:\.\w+\b(?!\())+)", rule["rule"]):
            base = f"{place}.{LOOPS[loop]}" if loop in LOOPS else place
            assert f"{base}{fields}" in known, rule["rule"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_good_resource(name: str) -> None:
    for resource in EXAMPLES[name]:
        schema = SCHEMAS[resource["kind"]]
        assert schema_errors(resource, schema) == []
        assert list(violated(resource, schema)) == []
        parsed = parse_resource(resource, lenient=False)
        assert (parsed.problems, parsed.ignored) == ((), ())


def pair(**spec: Any) -> JSON:
    fields: JSON = {
        "model": "acme",
        "target": {"source": "./target"},
        "draft": {"kind": "model", "source": "./draft"},
        "engine": {"kind": "slipstream"},
        **spec,
    }
    return manifest("ModelPair", "acme", fields)


ARM = {"protocol": "openai", "endpoints": ["http://a:1"], "model": "m"}


def external(arm: JSON | None = None, **spec: Any) -> JSON:
    found = pair(engine={"kind": "external", "arms": {"plain": ARM | (arm or {})}})
    del found["spec"]["target"], found["spec"]["draft"]
    found["spec"] |= spec
    return found


def without(resource: JSON, field: str) -> JSON:
    changed = copy.deepcopy(resource)
    del changed["spec"][field]
    return changed


def policy(**spec: Any) -> JSON:
    return manifest("SpeculationPolicy", "acme", {"pair": "acme", **spec})


def steps(*shares: float) -> JSON:
    return {"steps": [{"share": share} for share in shares]}


OUTSIDE = {"kind": "external", "arms": {"plain": ARM}}
REMOTE = {"kind": "slipstream", "endpoints": ["grpc://a:1"]}
VLLM = {"kind": "vllm", "endpoints": ["http://a:1"]}
IN_TRITON = {"kind": "vllm", "serving": "triton"}
PLAIN = {"endpoints": ["http://b:1"]}
OF_STARTED_VLLM: JSON = {
    "tensorParallelSize": 2,
    "pipelineParallelSize": 2,
    "dtype": "float16",
    "quantization": "fp8",
    "maxModelLen": 4096,
    "maxNumSeqs": 8,
    "arguments": ["--enforce-eager"],
}
TWO_ARMS = {"kind": "external", "arms": {"plain": ARM | {"pricePerGpuHour": 2}, "speculative": ARM}}

# One resource at least for every rule, each with a word of the message.
REFUSED = {
    "no target": (without(pair(), "target"), "target is required"),
    "no draft": (without(pair(), "draft"), "draft is required"),
    "no arms": (external(engine={"kind": "external"}), "engine.arms is required"),
    "arms of our engine": (pair(engine={"kind": "slipstream", "arms": {"plain": ARM}}), "engine.arms has no effect"),
    "external target": (external(target={"source": "./x"}), "target has no effect"),
    "external draft": (external(draft={"kind": "none"}), "draft has no effect"),
    "external serving": (external(serving={}), "serving has no effect with an engine kind other than slipstream"),
    "external device": (external(engine=OUTSIDE | {"device": "cpu"}), "engine.device has no effect"),
    "external dtype": (external(engine=OUTSIDE | {"dtype": "auto"}), "engine.dtype has no effect"),
    "external concurrency": (external(engine=OUTSIDE | {"maxConcurrency": 8}), "engine.maxConcurrency has no effect"),
    "external context": (external(engine=OUTSIDE | {"contextTokens": 64}), "engine.contextTokens has no effect"),
    "external addresses": (external(engine=OUTSIDE | {"endpoints": []}), "engine.endpoints has no effect"),
    "external model": (external(engine=OUTSIDE | {"tritonModel": "m"}), "engine.tritonModel has no effect"),
    "a pool of our engine": (pair(engine={"kind": "slipstream", "plain": PLAIN}), "engine.plain has no effect"),
    "a key of our engine": (pair(engine={"kind": "slipstream", "apiKeyEnv": "KEY"}), "engine.apiKeyEnv has no effect"),
    "a name of our engine": (pair(engine={"kind": "slipstream", "model": "m"}), "engine.model has no effect"),
    "our engine's server": (pair(engine={"kind": "slipstream", "serving": "openai"}), "engine.serving has no effect"),
    "our engine cannot": (pair(engine={"kind": "slipstream", "unsupported": []}), "engine.unsupported has no effect"),
    "vLLM without a target": (without(pair(engine={"kind": "vllm"}), "target"), "target is required"),
    "vLLM without a draft": (without(pair(engine=VLLM | {"endpoints": []}), "draft"), "draft is required"),
    "vLLM over gRPC": (pair(engine=VLLM | {"endpoints": ["grpc://a:1"]}), "engine.endpoints must be grpc://"),
    "vLLM in Triton over HTTP": (pair(engine=VLLM | {"serving": "triton"}), "engine.endpoints must be grpc://"),
    "Triton's name for vLLM": (pair(engine=VLLM | {"tritonModel": "m"}), "has no effect with serving openai"),
    "vLLM's name in Triton": (
        pair(engine=IN_TRITON | {"model": "m"}),
        "engine.model has no effect with serving triton",
    ),
    "vLLM's key in Triton": (pair(engine=IN_TRITON | {"apiKeyEnv": "KEY"}), "apiKeyEnv has no effect with serving"),
    "vLLM in Triton in a cluster": (pair(engine=IN_TRITON, serving={}), "serving has no effect with serving triton"),
    **{
        f"{field} of our engine": (
            pair(engine={"kind": "slipstream", field: value}),
            f"engine.{field} has no effect with an engine kind",
        )
        for field, value in OF_STARTED_VLLM.items()
        if field != "dtype"
    },
    **{
        f"{field} of servers elsewhere": (pair(engine=VLLM | {field: value}), f"engine.{field} has no effect with end")
        for field, value in OF_STARTED_VLLM.items()
    },
    "unused GPUs": (pair(engine={"kind": "vllm"}, serving={"gpus": 4}), "as many GPUs as vLLM uses"),
    "nodes without processes": (
        pair(engine={"kind": "vllm"}, serving={"gpus": 0, "nodes": 2}),
        "serving.nodes must divide the processes",
    ),
    "two numbers of servers": (
        pair(serving={"replicas": 2, "autoscaling": {"maxReplicas": 4}}),
        "replicas has no effect with autoscaling",
    ),
    "more than the most": (
        pair(serving={"autoscaling": {"minReplicas": 4, "maxReplicas": 2}}),
        "maxReplicas must be at least minReplicas",
    ),
    "cache of our engine": (
        pair(serving={"autoscaling": {"maxReplicas": 2, "kvCacheUsage": 0.8}}),
        "serving.autoscaling.kvCacheUsage is for engine kind vllm",
    ),
    "a pool of our engine's servers": (
        pair(serving={"inferencePool": {"endpointPicker": {"name": "epp"}}}),
        "serving.inferencePool is for engine kind vllm",
    ),
    "hostnames without a route": (
        pair(
            engine={"kind": "vllm"},
            serving={"inferencePool": {"endpointPicker": {"name": "epp"}, "hostnames": ["llm.example.com"]}},
        ),
        "hostnames has no effect without gateway",
    ),
    "adapters of our engine": (
        pair(engine={"kind": "slipstream", "adapters": []}),
        "engine.adapters has no effect with an engine kind",
    ),
    "adapters in Triton": (
        pair(engine=IN_TRITON | {"adapters": [{"name": "sql", "source": "./sql"}]}),
        "engine.adapters has no effect with serving triton",
    ),
    "an adapter without a source": (
        pair(engine={"kind": "vllm", "adapters": [{"name": "sql"}]}),
        "engine.adapters must each have a source",
    ),
    "an adapter of our package": (
        pair(engine={"kind": "vllm", "adapters": [{"name": "sql", "source": "embedded:draft"}]}),
        "source must be the folder of an adapter",
    ),
    **{
        f"an adapter that {scheme} cannot have": (
            pair(engine={"kind": "vllm", "adapters": [{"name": "sql", "source": f"{scheme}%"}]}),
            "source must be ",
        )
        for scheme in FORMS
    },
    "caches of our engine": (
        pair(engine={"kind": "slipstream", "prefixCaching": True}),
        "engine.prefixCaching has no effect with an engine kind",
    ),
    "an adapter with a source elsewhere": (
        pair(engine=VLLM | {"adapters": [{"name": "sql", "source": "./sql"}]}),
        "engine.adapters must each have a source",
    ),
    "two adapters of one name": (
        pair(engine=VLLM | {"adapters": [{"name": "sql"}, {"name": "sql", "model": "other"}]}),
        "engine.adapters must have different names",
    ),
    "GPUs of our engine": (pair(serving={"gpus": 2}), "must be at most 1: Slipstream's engine uses one GPU"),
    "a head for our engine": (pair(draft={"kind": "eagle3", "source": "./head"}), "eagle, eagle3, mtp, suffix are for"),
    "a tokenizer for vLLM's draft": (
        pair(engine={"kind": "vllm"}, draft={"kind": "model", "source": "./draft", "tokenizer": "./x"}),
        "draft.tokenizer has no effect with engine kind vllm",
    ),
    "a variable without a value": (pair(serving={"env": [{"name": "A"}]}), "needs either value or secret"),
    "our variable": (pair(serving={"env": [{"name": "HOME", "value": "/"}]}), "name must be none that Slipstream sets"),
    "our label": (pair(serving={"labels": {"slipstream.dev/pair": "x"}}), "labels must have none that Slipstream sets"),
    "our annotation": (
        pair(serving={"annotations": {"slipstream.dev/weights-hash": "x"}}),
        "annotations must have none that Slipstream sets",
    ),
    "an update that replaces nothing": (
        pair(serving={"update": {"maxSurge": 0}}),
        "maxUnavailable must be above 0 with maxSurge 0",
    ),
    "surge without servers": (
        pair(serving={"update": {"strategy": "Recreate", "maxSurge": 2}}),
        "maxSurge has no effect with strategy Recreate",
    ),
    "missing servers without servers": (
        pair(serving={"update": {"strategy": "Recreate", "maxUnavailable": 2}}),
        "maxUnavailable has no effect with strategy Recreate",
    ),
    "two plain pools": (
        pair(engine=VLLM | {"plain": PLAIN}, draft={"kind": "none"}),
        "engine.plain has no effect with draft kind none",
    ),
    "a plain server that speculates": (
        pair(engine=VLLM | {"plain": {"endpoints": ["http://a:1"]}}),
        "engine.plain.endpoints must be servers without speculation",
    ),
    "a plain server over gRPC": (
        pair(engine=VLLM | {"plain": {"endpoints": ["grpc://a:1"]}}),
        "endpoints must be http(s)://host:port",
    ),
    "served elsewhere": (pair(engine=REMOTE, serving={}), "serving has no effect with engine.endpoints"),
    "an address of HTTP": (pair(engine=REMOTE | {"endpoints": ["http://a:1"]}), "engine.endpoints must be grpc://"),
    "a password": (pair(engine=REMOTE | {"endpoints": ["grpc://u:p@a:1"]}), "without credentials"),
    "draft is target": (pair(draft={"kind": "model", "source": "./target"}), "another checkpoint than the target's"),
    "same revision": (
        pair(target={"source": "./a", "revision": "1"}, draft={"kind": "model", "source": "./a", "revision": "1"}),
        "another checkpoint than the target's",
    ),
    "one price": (external(engine=TWO_ARMS), "pricePerGpuHour is required for both"),
    "no draft model": (
        pair(draft={"kind": "model"}),
        "source is required for the draft kinds model, hybrid, eagle, eagle3",
    ),
    "no model beside n-grams": (pair(draft={"kind": "hybrid"}), "source is required for the draft kinds"),
    "two drafts in vLLM": (
        pair(engine=VLLM, draft={"kind": "hybrid", "source": "./draft"}),
        "draft.kind hybrid is for engine kind slipstream",
    ),
    "a choice of drafts in vLLM": (
        pair(engine=VLLM, draft={"kind": "model", "source": "./draft", "alternatives": ["./other"]}),
        "draft.alternatives are for engine kind slipstream",
    ),
    "candidates for vLLM": (
        pair(engine=VLLM, draft={"kind": "model", "source": "./draft", "candidates": "./trained"}),
        "draft.candidates is for engine kind slipstream",
    ),
    "the same draft twice": (
        pair(draft={"kind": "model", "source": "./draft", "alternatives": ["./other", "./draft"]}),
        "draft.alternatives must be checkpoints that differ",
    ),
    "n-gram source": (pair(draft={"kind": "ngram", "source": "./x"}), "source has no effect"),
    "n-gram revision": (pair(draft={"kind": "ngram", "revision": "x"}), "revision has no effect"),
    "no draft's tokenizer": (pair(draft={"kind": "none", "tokenizer": "x"}), "tokenizer has no effect"),
    "unknown target": (pair(target={"source": "embedded:x"}), "source must be a folder or one of"),
    **{
        f"{scheme} of the {part}'s {field}": (
            pair(**{part: {"source": "./x", **({"kind": "model"} if part == "draft" else {}), field: f"{scheme}!"}}),
            f"{field} must be {scheme}",
        )
        for part in ("target", "draft")
        for field in ("source", "tokenizer")
        for scheme in ("hf://", "s3://", "oci://", "pvc://")
    },
    "unknown tokenizer": (
        pair(target={"source": "./x", "tokenizer": "embedded:x"}),
        "tokenizer must be a folder or one of",
    ),
    "unknown draft's tokenizer": (
        pair(draft={"kind": "model", "source": "./x", "tokenizer": "embedded:x"}),
        "tokenizer must be a folder or one of",
    ),
    "unknown draft": (pair(draft={"kind": "model", "source": "embedded:x"}), "source must be a folder or one of"),
    "a key for Triton": (
        external({"protocol": "triton", "endpoints": ["grpc://a:1"], "apiKeyEnv": "KEY"}),
        "apiKeyEnv has no effect",
    ),
    "a dialect of Triton": (
        external({"protocol": "triton", "endpoints": ["grpc://a:1"], "dialect": "sglang"}),
        "dialect has no effect",
    ),
    "Triton over HTTP": (external({"protocol": "triton"}), "endpoints must be grpc(s)://host:port for protocol triton"),
    "OpenAI over gRPC": (external({"endpoints": ["grpc://a:1"]}), "else http(s)://host:port"),
    "a query": (external({"endpoints": ["http://a:1/?x=1"]}), "without credentials, query and fragment"),
    "value of Exists": (
        pair(serving={"tolerations": [{"key": "gpu", "operator": "Exists", "value": "x"}]}),
        "value has no effect with operator Exists",
    ),
    "equal to what": (pair(serving={"tolerations": [{"value": "x"}]}), "operator must be Exists"),
    "seconds of what": (
        pair(serving={"tolerations": [{"key": "gpu", "tolerationSeconds": 5}]}),
        "tolerationSeconds has no effect without effect NoExecute",
    ),
    "a class twice": (policy(classes=[{"name": "code"}, {"name": "code"}]), "one rule for each name"),
    "merged thresholds": (
        policy(thresholds={"p95Seconds": 2}, classes=[{"name": "code", "thresholds": {"ttftP95Seconds": 3}}]),
        "classes must have thresholds that fit the policy's",
    ),
    "thresholds of plain": (
        policy(classes=[{"name": "code", "mode": "plain", "thresholds": {}}]),
        "thresholds has no effect with mode plain",
    ),
    "first token after the last": (
        policy(thresholds={"p95Seconds": 2, "ttftP95Seconds": 3}),
        "ttftP95Seconds must be at most p95Seconds",
    ),
    "the same of a class": (
        policy(classes=[{"name": "code", "thresholds": {"p95Seconds": 2, "ttftP95Seconds": 3}}]),
        "ttftP95Seconds must be at most p95Seconds",
    ),
    "falling shares": (policy(rollout=steps(0.1, 0.5, 0.4)), "steps must have rising shares"),
    "equal shares": (policy(rollout=steps(*[n / 16 for n in range(1, 16)], 15 / 16)), "steps must have rising shares"),
    "parity without replays": (
        policy(parityShare=0, thresholds={"parityLoss": 0.01}),
        "parityLoss needs parityShare above 0",
    ),
    "parity of a class without replays": (
        policy(parityShare=0, classes=[{"name": "code", "thresholds": {"parityLoss": 0.01}}]),
        "parityLoss needs parityShare above 0",
    ),
    "cool-down": (policy(rollback={"coolDownSeconds": 90_000}), "coolDownSeconds must be at most"),
    "hold-back": (policy(maxHoldBackShare=0.01), "maxHoldBackShare must be at least holdBackShare"),
    "least hold-back": (policy(holdBackShare=0.3, maxHoldBackShare=0.2), "maxHoldBackShare must be at least"),
    "longest cool-down": (policy(rollback={"maxCoolDownSeconds": 60}), "coolDownSeconds must be at most"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_rule_refuses_what_the_schema_lets_pass_and_so_does_the_manifest(case: str) -> None:
    resource, message = REFUSED[case]
    schema = SCHEMAS[resource["kind"]]
    assert schema_errors(resource, schema) == []
    assert any(message in broken.message for broken in violated(resource, schema))
    assert parse_resource(resource, lenient=False).item is None


def test_there_is_a_failing_example_of_every_rule() -> None:
    broken = {found.rule for resource, _ in REFUSED.values() for found in violated(resource, SCHEMAS[resource["kind"]])}
    assert {rule["rule"] for schema in SCHEMAS.values() for _, rule in rules_of(schema)} == broken


@pytest.mark.parametrize(
    "resource",
    [
        pair(),
        pair(draft={"kind": "model", "source": "./target", "revision": "small"}),
        pair(draft={"kind": "ngram"}, engine=REMOTE),
        pair(killSwitch=None, serving={"tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "x"}]}),
        pair(engine={"kind": "vllm"}),
        without(without(pair(engine=VLLM | {"plain": PLAIN, "model": "m", "apiKeyEnv": "KEY"}), "target"), "draft"),
        pair(engine=IN_TRITON | {"endpoints": ["grpc://a:1"], "tritonModel": "m", "plain": PLAIN}),
        pair(engine=VLLM | {"unsupported": ["tools"]}, draft={"kind": "none"}),
        external(),
        external({"endpoints": ["https://a.example.com/v1", "http://[::1]:8000"]}),
        external(engine=TWO_ARMS, pricePerGpuHour=1),
        policy(maxCostIncrease=None, killSwitch=True),
        policy(rollout=steps(1)),
        policy(rollout=steps(*[n / 16 for n in range(1, 17)])),
        policy(thresholds={"p95Seconds": 2}, classes=[{"name": "code", "thresholds": {"ttftP95Seconds": 2}}]),
        policy(rollback={"coolDownSeconds": 90_000, "maxCoolDownSeconds": 90_000}),
        policy(holdBackShare=0.3),
        policy(maxHoldBackShare=0.02),
        policy(holdBackShare=0, maxHoldBackShare=0),
    ],
    ids=str,
)
def test_a_good_resource_breaks_no_rule(resource: JSON) -> None:
    schema = SCHEMAS[resource["kind"]]
    assert schema_errors(resource, schema) == []
    assert list(violated(resource, schema)) == []
    assert parse_resource(resource, lenient=False).problems == ()
