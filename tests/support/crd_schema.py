"""What an API server would say of a custom resource, without one: by its structural schema and its CEL rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cel
import jsonschema
import yaml
from slipstream_core.manifest import API_VERSION

from tests.support.manifests import JSON

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


class Violated(NamedTuple):
    """A rule that is not true of the value at `path`."""

    path: str
    rule: str
    message: str


def example_resources() -> dict[str, list[JSON]]:
    """Pairs and policies of the example manifests, by file; other kinds that stand beside them are left out."""
    found = {}
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        documents = yaml.safe_load_all(path.read_text())
        ours = [item for item in documents if isinstance(item, dict) and item.get("apiVersion") == API_VERSION]
        if ours:
            found[str(path.relative_to(EXAMPLES))] = ours
    return found


def schema_errors(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """What is structurally wrong, each with its path."""
    found = _validator(_Frozen(schema)).iter_errors(value)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def repeated(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Items of a list of the type `map` with one key, which the API server refuses as duplicates."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from repeated(item, schema.get("properties", {}).get(name, {}), f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        names = schema.get("x-kubernetes-list-map-keys", ())
        keys = [[item.get(name) for name in names] for item in value if isinstance(item, dict)]
        for index, key in enumerate(keys):
            if key and key in keys[:index]:
                yield f"{path}[{index}]: duplicate {key}"
        for index, item in enumerate(value):
            yield from repeated(item, schema.get("items", {}), f"{path}[{index}]")


def violated(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[Violated]:
    """The CEL rules that are broken by a `value` that fits the schema."""
    yield from _violated(_typed(value, schema), schema, path)


def rules_of(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, JSON]]:
    """Every CEL rule with the path of what it is said of."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule
    for name, below in schema.get("properties", {}).items():
        yield from rules_of(below, f"{path}.{name}".lstrip("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from rules_of(schema[key], path + mark)


def _violated(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Violated]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if _program(rule["rule"]).execute({"self": value}) is not True:
            yield Violated(path, rule["rule"], rule["message"])
    if isinstance(value, dict):
        for name, item in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            yield from _violated(item, below, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _violated(item, schema.get("items", {}), f"{path}[{index}]")


@cache
def _program(rule: str) -> cel.Program:
    return cel.compile(rule)


class _Frozen:
    """A schema as a key of a cache, by its identity."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and other.schema is self.schema


@cache
def _validator(frozen: _Frozen) -> jsonschema.Draft4Validator:
    """Draft 4 has exclusive bounds as Kubernetes has them: as booleans."""
    return jsonschema.Draft4Validator(_with_null(frozen.schema))


def _with_null(schema: Any) -> Any:
    """`nullable: true` in the words of JSON schema."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    written = {key: _with_null(item) for key, item in schema.items()}
    return written | {"type": [written["type"], "null"]} if schema.get("nullable") is True else written


def _typed(value: Any, schema: Mapping[str, Any]) -> Any:
    """As Kubernetes hands it to CEL: a number is never an integer there, and null is absent."""
    if isinstance(value, dict):
        below = schema.get("properties", {})
        other = schema.get("additionalProperties", {})
        return {key: _typed(item, below.get(key, other)) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_typed(item, schema.get("items", {})) for item in value]
    return float(value) if schema.get("type") == "number" else value
