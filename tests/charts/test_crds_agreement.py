"""The API server and the gateways take the same objects: schema and rules against the types that parse them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from slipstream_core.manifest import EMBEDDED_MANIFEST, Problem, parse_resource
from slipstream_core.manifest.crd import crds

from tests.support.crd_schema import example_resources, repeated, schema_errors, violated
from tests.support.manifests import JSON

SCHEMAS: dict[str, JSON] = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in crds()
}
BASES: list[JSON] = [
    *yaml.safe_load_all(EMBEDDED_MANIFEST.read_text()),
    *(resource for resources in example_resources().values() for resource in resources),
]

# What only the gateways and the operator refuse, with a condition that says so: CEL has no words for it that every
# server understands, or they would cost it too much.
EXCEPTIONS = (
    "must not have control characters or lone surrogates",
    "must be at most the limit",  # amounts of resources
    "a key must match",  # of a map: a schema cannot say anything of them
    "a key must have at most",
    "must be grpc://host:port",  # the exact grammar of a host; the rules know its outlines
    "must be http://host:port or https://host:port",
    "is set by Slipstream, leave it out, got '-",  # arguments of vLLM: prefixes of names
    "is not supported: Slipstream reserves no GPUs for such ranks",  # the same
    "is set by spec.engine.",
    "is listed twice",  # variables
)

# Values near to what the rules look at; the schema alone would hardly ever meet them.
LIKELY: dict[str, list[Any]] = {
    "source": [
        "./target",
        "./draft",
        "embedded:target",
        "embedded:draft",
        "embedded:x",
        "hf://a/b@c",
        "hf://a",
        "s3://bucket/a@0123456789abcdef",
        "s3://b/a",
        "pvc://c/x",
    ],
    "tokenizer": ["./t", "embedded:target", "embedded:x", "hf://a/b@c", "oci://", "pvc://C"],
    "revision": ["1", "2"],
    "endpoints": [["grpc://a:1"], ["http://a:1"], ["grpc://a:1", "grpc://b:1"], ["http://u:p@a"], ["grpc://a:99999"]],
    "name": ["code", "code/long", "summarization"],
    "share": [0.1, 0.2, 0.5, 1],
    "p95Seconds": [1, 2.5],
    "ttftP95Seconds": [1, 2.5],
    "holdBackShare": [0, 0.02, 0.1],
    "maxHoldBackShare": [0, 0.02, 0.1],
    "coolDownSeconds": [0, 600, 604_800],
    "maxCoolDownSeconds": [0, 600, 604_800],
    "requests": [{"cpu": "2"}, {"memory": "16Gi"}, {"cpu": "1", "bad key!": "1"}],
    "limits": [{"cpu": "1"}, {"memory": "20G"}, {"cpu": "2500m"}],
    "effect": ["NoExecute", "NoSchedule"],
    "gpus": [0, 1, 2, 4, 8],
    "nodes": [1, 2],
    "tensorParallelSize": [1, 2, 4, 8],
    "pipelineParallelSize": [1, 2],
    "arguments": [[], ["--enable-prefix-caching"], ["--port=1"], ["-tp", "2"]],
}


def values(schema: JSON, name: str = "") -> st.SearchStrategy[Any]:
    """Values that fit `schema`, of the field `name`."""
    found = _values(schema)
    if name in LIKELY:
        likely = [value for value in LIKELY[name] if schema_errors(value, schema) == []]
        found = st.sampled_from(likely) | found if likely else found
    return st.none() | found if schema.get("nullable") else found


def _values(schema: JSON) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            return st.floats(
                schema["minimum"],
                schema["maximum"],
                exclude_min=schema.get("exclusiveMinimum", False),
                exclude_max=schema.get("exclusiveMaximum", False),
            )
        case "string" if "pattern" in schema:
            texts = st.from_regex(schema["pattern"].replace("$", r"\Z"), alphabet=st.characters(max_codepoint=126))
            return texts.filter(lambda text: len(text) <= schema["maxLength"])
        case "string":
            return st.text(st.characters(exclude_categories=["Cs"]), min_size=schema.get("minLength", 0), max_size=12)
        case "array":
            unique = schema["x-kubernetes-list-type"] == "set"
            return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=4, unique=unique)
    return _objects(schema)


def _objects(schema: JSON) -> st.SearchStrategy[JSON]:
    if "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from(["a", "b/c"]), values(schema["additionalProperties"]), max_size=2)
    if "properties" not in schema:
        return st.fixed_dictionaries({}, optional={"nodeAffinity": st.fixed_dictionaries({})})
    fields = {name: values(below, name) for name, below in schema["properties"].items()}
    required = schema.get("required", [])
    return st.sets(st.sampled_from(sorted(fields)), max_size=4).flatmap(
        lambda chosen: st.fixed_dictionaries({name: fields[name] for name in fields if name in chosen | {*required}})
    )


def places(value: JSON, schema: JSON) -> Iterator[tuple[JSON, str, JSON]]:
    """Every field that an object has or could have: what holds it, its name and its schema."""
    for name, below in schema.get("properties", {}).items():
        yield value, name, below
        inner = value.get(name)
        if isinstance(inner, dict):
            yield from places(inner, below)
        for item in inner if isinstance(inner, list) else ():
            if isinstance(item, dict):
                yield from places(item, below["items"])


@st.composite
def resources(draw: st.DrawFn) -> JSON:
    """A good resource with up to four fields set to something else, or left out, as far as its schema allows."""
    resource = copy.deepcopy(draw(st.sampled_from(BASES)))
    schema = SCHEMAS[resource["kind"]]["properties"]["spec"]
    for _ in range(draw(st.integers(1, 4))):
        holder, name, below = draw(st.sampled_from(list(places(resource["spec"], schema))))
        if name in holder and draw(st.integers(0, 4)) == 0:
            del holder[name]
        else:
            holder[name] = draw(values(below, name))
    return resource


def is_exception(problem: Problem) -> bool:
    return any(known in problem.message for known in EXCEPTIONS)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(resource=resources())
def test_the_api_server_takes_what_the_gateways_take(resource: JSON) -> None:
    schema = SCHEMAS[resource["kind"]]
    refused = schema_errors(resource, schema) or list(repeated(resource, schema))
    refused = refused or [str(broken) for broken in violated(resource, schema)]
    parsed = parse_resource(resource, lenient=False)
    if refused:
        event("refused by both")
        assert parsed.problems, f"only the API server refuses it: {refused}"
    else:
        event("taken by both" if parsed.item else "an exception")
        assert [str(problem) for problem in parsed.problems if not is_exception(problem)] == []


@pytest.mark.parametrize("name", [f"{'a' * 63}", "a", "a-b", "a.b", "A", "-a", "a" * 64, ""])
def test_names_of_objects_are_the_same_to_both(name: str) -> None:
    resource = copy.deepcopy(BASES[0])
    resource["metadata"]["name"] = name
    refused = bool(schema_errors(resource, SCHEMAS[resource["kind"]]))
    assert refused is (parse_resource(resource).item is None)
