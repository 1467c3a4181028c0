"""The kinds as Kubernetes gets them: the chart, the shape of the schemas, and what every rule refuses."""

from __future__ import annotations

import itertools
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

from tests.charts.test_crds_agreement import is_exception
from tests.gateway.manifest.test_manifest_adapters import REFUSED as REFUSED_ADAPTERS
from tests.gateway.manifest.test_manifest_rules import (
    PAIR,
    POLICY,
    REFUSED_PAIRS,
    REFUSED_POLICIES,
    STARTED_VLLM,
    VLLM,
    WITHOUT_EFFECT,
    changed,
)
from tests.support.crd_schema import example_resources, rules_of, schema_errors, violated
from tests.support.manifests import JSON

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


def test_only_parts_of_pods_are_free_form() -> None:
    free = {
        path
        for schema in SCHEMAS.values()
        for path, node in nodes(schema)
        if "x-kubernetes-preserve-unknown-fields" in node
    }
    assert free == {"spec.serving.affinity", "spec.serving.volumes[]"}


LOOP = re.compile(r"self\.([\w.]+)\.all\(item")


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_rule_speaks_of_fields_that_there_are(kind: str) -> None:
    known = {path for path, _ in nodes(SCHEMAS[kind])}
    for place, rule in rules_of(SCHEMAS[kind]):
        loop = LOOP.search(rule["rule"])
        for root, fields in re.findall(r"\b(self|item|other)((?:\.\w+\b(?!\())+)", rule["rule"]):
            base = place if root == "self" else f"{place}.{loop and loop[1]}[]"
            assert f"{base}{fields}" in known, rule["rule"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_good_resource(name: str) -> None:
    for resource in EXAMPLES[name]:
        schema = SCHEMAS[resource["kind"]]
        assert schema_errors(resource, schema) == []
        assert list(violated(resource, schema)) == []
        parsed = parse_resource(resource, lenient=False)
        assert (parsed.problems, parsed.ignored) == ((), ())


ARM = {"protocol": "openai", "endpoints": ["http://a:1"], "model": "m"}
OUTSIDE = {"kind": "external", "arms": {"plain": ARM}}
TWO_ARMS = {"kind": "external", "arms": {"plain": ARM | {"pricePerGpuHour": 2}, "speculative": ARM}}
REMOTE = {"kind": "slipstream", "endpoints": ["grpc://a:1"]}
IN_TRITON = {"kind": "vllm", "serving": "triton"}
PLAIN = {"endpoints": ["http://b:1"]}
OF_STARTED_VLLM: JSON = {
    "tensorParallelSize": 2, "pipelineParallelSize": 2, "dtype": "float16", "quantization": "fp8",
    "maxModelLen": 4096, "maxNumSeqs": 8, "arguments": ["--enforce-eager"],
}  # fmt: skip
OF_ANY_VLLM: JSON = {
    "plain": PLAIN, "apiKeyEnv": "KEY", "model": "m", "serving": "openai", "unsupported": [], "adapters": [],
    "prefixCaching": True,
}  # fmt: skip
OF_A_CHECKPOINT: JSON = {
    "source": "./x", "revision": "1", "tokenizer": "./t", "alternatives": ["./y"], "candidates": "./trained",
}  # fmt: skip
OF_OUR_ENGINE: JSON = {
    "device": "cpu", "dtype": "auto", "maxConcurrency": 8, "contextTokens": 64, "endpoints": [], "tritonModel": "m",
}  # fmt: skip


def pair(*without: str, **spec: Any) -> JSON:
    """The pair of the manifest's tests with `spec` in it, and the fields `without` out of it."""
    found = changed(PAIR, spec)
    for field in without:
        del found["spec"][field]
    return found


def external(arm: JSON | None = None, **spec: Any) -> JSON:
    found = pair("target", "draft", engine={"kind": "external", "arms": {"plain": ARM | (arm or {})}})
    return changed(found, spec)


def policy(**spec: Any) -> JSON:
    return changed(POLICY, spec)


def steps(*shares: float) -> JSON:
    return {"steps": [{"share": share} for share in shares]}


def adapter(engine: JSON, **fields: str) -> JSON:
    return pair(engine=engine | {"adapters": [{"name": "sql", **fields}]})


def of_sources() -> Iterator[JSON]:
    """Sources that no scheme has, and those that a scheme cannot have."""
    for part, field in itertools.product(("target", "draft"), ("source", "tokenizer")):
        given = {"source": "./x", **({"kind": "model"} if part == "draft" else {})}
        for source in ("embedded:x", *(f"{scheme}!" for scheme in FORMS)):
            yield pair(**{part: given | {field: source}})
    for scheme in FORMS:
        yield adapter(STARTED_VLLM, source=f"{scheme}%")
    for source in ("embedded:x", *(f"{scheme}!" for scheme in FORMS)):
        yield pair(draft={"kind": "model", "source": "./draft", "alternatives": [source]})


_WEBHOOK: JSON = {"url": "http://checks.qa/gate"}
_QUERY: JSON = {"address": "http://prometheus:9090", "query": "up", "min": 1}
BROKEN_CHECKS: tuple[list[JSON], ...] = (
    [{"name": "smoke", "webhook": _WEBHOOK}] * 2,
    [{"name": "smoke"}],
    [{"name": "smoke", "webhook": _WEBHOOK, "prometheus": _QUERY}],
    [{"name": "smoke", "webhook": {"url": "http://user:password@checks.qa/gate"}}],
    [{"name": "smoke", "prometheus": {**_QUERY, "address": "ftp://prometheus"}}],
    [{"name": "smoke", "prometheus": {"address": "http://prometheus:9090", "query": "up"}}],
)
# What the tables of the manifest's tests lack: together there is one resource at least for every rule.
REFUSED = (
    *(pair(field) for field in ("target", "draft")),
    *(pair(field, engine=STARTED_VLLM) for field in ("target", "draft")),
    external(engine={"kind": "external"}),
    pair(engine={"kind": "slipstream", "arms": {"plain": ARM}}),
    *(external(**{field: value}) for field, value in (("target", {"source": "./x"}), ("draft", {"kind": "none"}))),
    external(serving={}),
    *(external(engine=OUTSIDE | {field: value}) for field, value in OF_OUR_ENGINE.items()),
    *(
        pair(engine={"kind": "slipstream", field: value})
        for field, value in (OF_ANY_VLLM | OF_STARTED_VLLM).items()
        if field != "dtype"
    ),
    *(pair(engine=engine | {field: value}) for engine in (VLLM, IN_TRITON) for field, value in OF_STARTED_VLLM.items()),
    pair(engine=STARTED_VLLM, serving={"gpus": 0, "nodes": 2}),
    pair(serving={"replicas": 2, "autoscaling": {"maxReplicas": 4}}),
    pair(serving={"autoscaling": {"minReplicas": 4, "maxReplicas": 2}}),
    pair(serving={"autoscaling": {"maxReplicas": 2, "kvCacheUsage": 0.8}}),
    pair(serving={"inferencePool": {"endpointPicker": {"name": "epp"}}}),
    pair(
        engine=STARTED_VLLM,
        serving={"inferencePool": {"endpointPicker": {"name": "epp"}, "hostnames": ["llm.example.com"]}},
    ),
    pair(serving={"annotations": {"slipstream.dev/weights-hash": "x"}}),
    pair(serving={"update": {"maxSurge": 0}}),
    *(pair(serving={"update": {"canary": {"checks": checks}}}) for checks in BROKEN_CHECKS),
    *(pair(serving={"update": {"strategy": "Recreate", field: 2}}) for field in ("maxSurge", "maxUnavailable")),
    pair(engine=VLLM | {"plain": {"endpoints": ["grpc://a:1"]}}),
    *(pair(engine=engine | {"endpoints": ["http://a:1"]}) for engine in (REMOTE, IN_TRITON)),
    pair(engine=VLLM | {"endpoints": ["grpc://a:1"]}),
    pair(engine=REMOTE | {"endpoints": ["grpc://u:p@a:1"]}),
    pair(target={"source": "./a", "revision": "1"}, draft={"kind": "model", "source": "./a", "revision": "1"}),
    *(pair(draft={"kind": kind}) for kind in ("model", "hybrid")),
    *(pair(draft={"kind": kind}, engine=STARTED_VLLM) for kind in ("eagle", "eagle3")),
    *(pair(draft={"kind": kind}) for kind in ("eagle", "eagle3", "mtp", "suffix")),
    *(
        pair(draft={"kind": kind, field: value}, engine=STARTED_VLLM)
        for kind, (field, value) in itertools.product(("ngram", "suffix", "none", "mtp"), OF_A_CHECKPOINT.items())
        if (kind, field) != ("mtp", "source")
    ),
    external(engine=TWO_ARMS),
    external(engine={"kind": "external", "arms": {"plain": ARM, "speculative": ARM | {"pricePerGpuHour": 2}}}),
    pair(draft={"kind": "model", "source": "./draft", "alternatives": ["./draft"]}),
    pair(engine=VLLM | {"adapters": [{"name": "sql"}, {"name": "sql", "model": "other"}]}),
    *of_sources(),
    external({"protocol": "triton", "endpoints": ["grpc://a:1"], "apiKeyEnv": "KEY"}),
    external({"protocol": "triton", "endpoints": ["grpc://a:1"], "dialect": "sglang"}),
    external({"protocol": "triton"}),
    external({"endpoints": ["grpc://a:1"]}),
    external({"endpoints": ["http://a:1/?x=1"]}),
    policy(classes=[{"name": "code"}, {"name": "code"}]),
    policy(classes=[{"name": "code", "thresholds": {"p95Seconds": 2, "ttftP95Seconds": 3}}]),
    policy(rollout=steps(*[n / 16 for n in range(1, 16)], 15 / 16)),
    policy(holdBackShare=0.3, maxHoldBackShare=0.2),
    policy(rollback={"maxCoolDownSeconds": 60}),
)  # fmt: skip
OF_THE_MANIFEST = (
    *(changed(PAIR, spec) for spec, *_ in (*REFUSED_PAIRS, *WITHOUT_EFFECT)),
    *(changed(POLICY, spec) for spec, _ in REFUSED_POLICIES),
    *(document for document, _ in REFUSED_ADAPTERS),
)


# What the gateways and the operator alone refuse, besides the exceptions that examples at random come upon.
ALONE = (
    "a key must be a string",
    "must be the long form",
    "spec.draft.alternatives[0]: must be hf://",
    "spec.serving.affinity",
)


def is_for_a_rule(resource: JSON) -> bool:
    """Whether an API server would take it if there were no rules."""
    known = parse_resource(resource, lenient=False).problems
    if schema_errors(resource, SCHEMAS[resource["kind"]]):
        return False
    return not all(is_exception(each) or any(part in str(each) for part in ALONE) for each in known)


BROKEN = (*REFUSED, *filter(is_for_a_rule, OF_THE_MANIFEST))


@pytest.mark.parametrize("resource", BROKEN)
def test_a_rule_refuses_what_the_schema_lets_pass_and_names_the_field_that_the_manifest_names(resource: JSON) -> None:
    schema = SCHEMAS[resource["kind"]]
    assert schema_errors(resource, schema) == []
    broken = " ".join(f"{found.path} {found.message}" for found in violated(resource, schema))
    paths = [problem.path for problem in parse_resource(resource, lenient=False).problems]
    names = [re.findall(r"\w+", path.removeprefix("spec.")) for path in paths]
    fields = [each for some in names for each in some if each not in ("serving", "engine") or each == some[-1]]
    assert any(re.search(rf"\b{field}\b", broken) for field in fields), (broken, paths)


def test_there_is_a_failing_example_of_every_rule() -> None:
    broken = {found.rule for resource in BROKEN for found in violated(resource, SCHEMAS[resource["kind"]])}
    assert {rule["rule"] for schema in SCHEMAS.values() for _, rule in rules_of(schema)} == broken


@pytest.mark.parametrize(
    "resource",
    [
        pair(),
        pair(draft={"kind": "model", "source": "./target", "revision": "small"}),
        pair(draft={"kind": "ngram"}, engine=REMOTE),
        pair(killSwitch=None, serving={"tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "x"}]}),
        pair(engine=STARTED_VLLM),
        pair("target", "draft", engine=VLLM | {"plain": PLAIN, "model": "m", "apiKeyEnv": "KEY"}),
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
