"""The two kinds, field by field, from the schemas that an API server checks them by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.manifest.crd import crds

from docs.generate.markdown import page, table

_LIMITS = {
    "enum": "one of",
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "maxItems": "maximum number of items",
    "pattern": "pattern",
}


def resources() -> str:
    parts = []
    for definition in crds():
        kind, version = definition["spec"]["names"]["kind"], definition["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        parts += [
            f"## {kind}",
            schema["description"],
            f"`apiVersion: {definition['spec']['group']}/{version['name']}`, `kind: {kind}`.",
        ]
        for part in ("spec", "status"):
            parts += [f"### {kind}.{part}", table(("Field", "Type", "Meaning"), _rows(schema["properties"][part]))]
    return page(
        "Manifest: ModelPair and SpeculationPolicy",
        "The same YAML is a manifest file for a gateway and custom resources in a cluster. Required fields are bold. "
        "Only the operator writes `status`.",
        *parts,
    )


def _rows(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        where = f"{path}{name}"
        shown = f"**`{where}`**" if name in required else f"`{where}`"
        yield shown, _type(field), _text(field)
        yield from _rows(field, f"{where}.")
        items = field.get("items")
        if isinstance(items, Mapping):
            yield from _rows(items, f"{where}[].")


def _type(field: Mapping[str, Any]) -> str:
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if kind == "object" and isinstance(field.get("additionalProperties"), Mapping):
        return f"map of {_type(field['additionalProperties'])}"
    return str(kind)


def _text(field: Mapping[str, Any]) -> str:
    limits = [f"{word} {_value(field[name])}" for name, word in _LIMITS.items() if name in field]
    return " ".join(filter(None, (field.get("description", ""), f"({'; '.join(limits)})" if limits else "")))


def _value(value: object) -> str:
    return ", ".join(f"`{item}`" for item in value) if isinstance(value, list) else f"`{value}`"
