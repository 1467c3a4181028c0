"""The two kinds, field by field, from the schemas that an API server checks them by."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.manifest.crd import crds

from docs.generate.markdown import page, table

# An object with fewer fields is shown again: a reference would not be shorter.
_FEW_FIELDS = 3


def resources() -> str:
    parts: list[str] = []
    for definition in crds():
        kind, version = definition["spec"]["names"]["kind"], definition["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        parts += [
            f"## {kind}",
            schema["description"],
            f"`apiVersion: {definition['spec']['group']}/{version['name']}`, `kind: {kind}`. Fields of `spec`:",
            table(("Field", "Meaning"), _rows(schema["properties"]["spec"], "", {})),
        ]
    return page(
        "Manifest: ModelPair and SpeculationPolicy",
        "The same YAML is a manifest file for a gateway and custom resources in a cluster. Required fields are bold. "
        "Brackets have the type and the permitted values. Only the operator writes `status`: see "
        "[Conditions](../conditions.md), and `kubectl explain modelpair.status` for its fields.",
        *parts,
    )


def _rows(schema: Mapping[str, Any], path: str, shown: dict[str, str]) -> Iterator[tuple[str, str]]:
    """`shown` has the path of each object, by its fields: a second object with the same fields refers to the first."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        where = f"{path}{name}"
        below = field["items"] if field.get("type") == "array" else field
        fields = below.get("properties", {}) if isinstance(below, Mapping) else {}
        first = shown.setdefault(json.dumps(fields), where) if len(fields) >= _FEW_FIELDS else where
        text = _text(field) if first == where else f"{_text(field)} Fields as in `{first}`."
        yield f"**`{where}`**" if name in required else f"`{where}`", text
        if first == where and fields:
            yield from _rows(below, f"{where}[]." if below is not field else f"{where}.", shown)


def _type(field: Mapping[str, Any]) -> str:
    """Empty for an object: its fields follow."""
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field['items']) or 'objects'}"
    if kind == "object":
        return f"map of {_type(field['additionalProperties'])}" if "additionalProperties" in field else ""
    return kind


def _text(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        limits = [", ".join(f"`{item}`" for item in field["enum"])]
    else:
        limits = [part for part in (_type(field), *_limits(field)) if part]
    return " ".join(filter(None, (field.get("description", ""), f"({'; '.join(limits)})" if limits else "")))


def _limits(field: Mapping[str, Any]) -> Iterator[str]:
    """Bounds of numbers. Those of texts and lists are in the error message of a value that breaks them."""
    if "minimum" in field or "maximum" in field:
        yield _range(field.get("minimum"), field.get("maximum"))


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {low}" if high is None else f"at most {high}"
    return f"{low} to {high}"
