"""The two kinds, field by field, from the schemas that an API server checks them by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.manifest.crd import crds

from docs.generate.markdown import listing, page

# An object with fewer fields is shown again: a reference would not be shorter.
_FEW_FIELDS = 3
# Objects that have the fields of Kubernetes' own pods.
_OF_PODS = {f"serving.{name}" for name in ("podSecurityContext", "resources", "tolerations", "volumeMounts")}
# Types that a reader sees from the description, the default or the range.
_PLAIN = {"string", "boolean", "integer", "number"}


def resources() -> str:
    parts: list[str] = []
    for definition in crds():
        kind, version = definition["spec"]["names"]["kind"], definition["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        parts += [
            f"## {kind}",
            schema["description"],
            f"`apiVersion: {definition['spec']['group']}/{version['name']}`, `kind: {kind}`. Fields of `spec`:",
            listing(_rows(schema["properties"]["spec"], "", {})),
        ]
    return page(
        "Manifest: ModelPair and SpeculationPolicy",
        "The same YAML is a manifest file for a gateway and custom resources in a cluster. Required fields are bold. "
        "Brackets have the permitted values or the range, and mark lists and maps. Only the operator writes "
        "`status`: see [Conditions](../conditions.md), and `kubectl explain modelpair.status` for its fields.",
        *parts,
    )


def _rows(schema: Mapping[str, Any], path: str, shown: dict[str, str]) -> Iterator[tuple[str, str]]:
    """`shown` has the path of each object, by its fields: a second object with the same fields refers to the first."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        where = f"{path}{name}"
        below = field["items"] if field.get("type") == "array" else field
        fields = below.get("properties", {}) if isinstance(below, Mapping) else {}
        known = _known(where, fields, shown)
        text = f"{_text(field)} Fields as in {known}." if known else _text(field)
        yield f"**`{where}`**" if name in required else f"`{where}`", text
        if fields and not known:
            yield from _rows(below, f"{where}[]." if below is not field else f"{where}.", shown)


def _known(where: str, fields: Mapping[str, Any], shown: dict[str, str]) -> str:
    """Where a reader finds these fields already; empty if they have to follow."""
    if where in _OF_PODS:
        return f"a pod's spec: {', '.join(f'`{name}`' for name in fields)}"
    first = shown.setdefault(json.dumps(fields), where) if len(fields) >= _FEW_FIELDS else where
    return f"`{first}`" if first != where else ""


def _type(field: Mapping[str, Any]) -> str:
    """Empty for a text, for an object, whose fields follow, and for what the text, the default or the range shows."""
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field['items'])}" if _type(field["items"]) else "list"
    if kind == "object":
        return "map" if "additionalProperties" in field else ""
    return kind if kind not in _PLAIN else ""


def _text(field: Mapping[str, Any]) -> str:
    description = field.get("description", "")
    limits = [part for part in (_values(field, description), _type(field), *_limits(field)) if part]
    return " ".join(filter(None, (description, f"({'; '.join(limits)})" if limits else "")))


def _values(field: Mapping[str, Any], description: str) -> str:
    """The permitted values, unless the description explains each of them."""
    values = field.get("enum", ())
    explained = all(f"{value}:" in description for value in values)
    return "" if explained else ", ".join(f"`{value}`" for value in values)


def _limits(field: Mapping[str, Any]) -> Iterator[str]:
    """Bounds of numbers. Those of texts and lists are in the error message of a value that breaks them."""
    if "minimum" in field or "maximum" in field:
        yield _range(field.get("minimum"), field.get("maximum"))


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {low}" if high is None else f"at most {high}"
    return f"{low} to {high}"
