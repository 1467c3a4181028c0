"""Parsing of one custom resource, whose content this version need not accept.

A newer version may have written fields that this version does not know: they are removed first (`prune`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from slipstream_core.manifest.check import Problem, member_of
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.parse import TYPES, parse_object, without_status
from slipstream_core.manifest.reports import object_key
from slipstream_core.manifest.speculation_policy import ManifestObject
from slipstream_core.manifest.status import NameHolder


class ParsedResource(msgspec.Struct, frozen=True, kw_only=True):
    """The result of parsing one resource.

    `item` is None if there are `problems`. `ignored` are the paths of its unknown fields, which have no effect. The
    other fields are read from the raw object, however invalid it is: `killed` is `raw_kill_switch`, `pair` the pair's
    name in a policy, `model` the name that a pair claims, `created` its time of creation ("" without a cluster).
    `name_holder` is the holder of a model name that the pair waits for. `canary` is the pair in a version whose
    revision is compared with the serving one, so that `item` is None. Only `parse_version` sets both.
    """

    kind: str
    namespace: str | None
    name: str
    item: ManifestObject | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    killed: bool = False
    pair: str | None = None
    model: str | None = None
    created: str = ""
    name_holder: NameHolder | None = None
    canary: ModelPair | None = None

    @property
    def key(self) -> str:
        """`namespace/Kind/name`, the key in reports."""
        return object_key(self.namespace or "", self.kind, self.name)

    @property
    def pair_key(self) -> str | None:
        """The key of this pair, or of this policy's pair; None for a policy without a pair."""
        name = self.name if self.kind == "ModelPair" else self.pair
        return name if name is None or self.namespace is None else f"{self.namespace}/{name}"


def parse_resource(raw: Mapping[str, Any], *, lenient: bool = True) -> ParsedResource:
    """The object in a custom resource, checked by itself. Never raises, whatever the resource holds.

    `lenient` False makes unknown fields problems, as in a file.
    """
    value = without_status(raw)
    expected = TYPES.get(kind) if isinstance(kind := raw.get("kind"), str) else None
    ignored: tuple[str, ...] = ()
    if lenient and expected is not None:
        value, ignored = prune(value, expected)
    item, problems = parse_object(value)
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    spec = raw.get("spec")
    return ParsedResource(
        kind=_text(raw.get("kind")) or "",
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")) or "",
        item=item,
        problems=problems,
        ignored=ignored,
        killed=raw_kill_switch(raw),
        pair=_text(spec.get("pair")) if isinstance(spec, Mapping) else None,
        model=_text(spec.get("model")) if isinstance(spec, Mapping) and kind == "ModelPair" else None,
        created=_text(metadata.get("creationTimestamp")) or "",
    )


def raw_kill_switch(raw: Mapping[str, Any]) -> bool:
    """Whether `spec.killSwitch` is true, whatever else is invalid in the object."""
    spec = raw.get("spec")
    return isinstance(spec, Mapping) and spec.get("killSwitch") is True


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class Pruned(NamedTuple):
    """A value without unknown fields, and the paths of the removed fields, such as `spec.foo`."""

    value: object
    ignored: tuple[str, ...]


def prune(value: object, expected: inspect.Type) -> Pruned:
    """`value` without the fields that `expected` does not have. Other mismatches stay, for `check` to report."""
    ignored: list[str] = []
    return Pruned(_prune(value, expected, "", ignored), tuple(ignored))


def _prune(value: object, expected: inspect.Type, path: str, ignored: list[str]) -> object:
    match expected:
        case inspect.Metadata():
            return _prune(value, expected.type, path, ignored)
        case inspect.StructType() if isinstance(value, Mapping):
            return _prune_struct(value, expected, path, ignored)
        case inspect.UnionType() if (chosen := member_of(value, expected)) is not None:
            return _prune(value, chosen, path, ignored)
        case inspect.VarTupleType() if isinstance(value, list):
            return [_prune(item, expected.item_type, f"{path}[{index}]", ignored) for index, item in enumerate(value)]
    return value


def _prune_struct(
    value: Mapping[object, object], expected: inspect.StructType, path: str, ignored: list[str]
) -> Mapping[object, object]:
    if not expected.forbid_unknown_fields:
        return value
    fields = {field.encode_name: field.type for field in expected.fields}
    kept: dict[object, object] = {}
    for key, item in value.items():
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(key, str) and key in fields:
            kept[key] = _prune(item, fields[key], inner, ignored)
        elif key == expected.tag_field:
            kept[key] = item
        else:
            ignored.append(inner)
    return kept
