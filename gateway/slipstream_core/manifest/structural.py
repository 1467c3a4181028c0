"""Structural schemas of the manifest's types, as Kubernetes requires: no references, no unions, no defaults.

Kubernetes would write a schema's defaults into users' objects, where they could not be distinguished from users' own
choices; so defaults are in the descriptions. A union of tagged structs becomes one object with the fields of all
members, and rules (see `rule`) restrict the combinations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from slipstream_core.manifest.pair_rules import PAIR_RULES
from slipstream_core.manifest.policy_rules import POLICY_RULES

Schema = dict[str, Any]


class CelRule(NamedTuple):
    """A rule of a schema: `rule` must be true of `self`, else `message`."""

    rule: str
    message: str


_INT32_MAX = 2**31 - 1

# Merge strategy of lists; any list without one is replaced as a whole.
_MAP_KEYS = {"classes": "name", "conditions": "type", "patterns": "name"}
_SETS = ("endpoints",)

_TAKEN_BACK_BY_NULL = ("killSwitch",)
_RULES = {**PAIR_RULES, **POLICY_RULES}


def structural(kind: type[msgspec.Struct]) -> Schema:
    """The schema of one type with all nested types."""
    schema = _schema(inspect.type_info(kind))
    schema.pop("nullable", None)
    return schema


def summary(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((text or "").split("\n\n")[0].split())


def _schema(kind: inspect.Type, name: str = "") -> Schema:
    """`name` is that of the field; merge strategies of lists depend on it."""
    match kind:
        case inspect.Metadata():
            extra = kind.extra_json_schema or {}
            return _schema(kind.type, name) | extra
        case inspect.StructType():
            return _object(kind)
        case inspect.UnionType():
            return _union(kind, name)
        case inspect.VarTupleType():
            return _list(kind, name)
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.DictType():
            bounds = {} if kind.max_length is None else {"maxProperties": kind.max_length}
            return {"type": "object", "additionalProperties": _schema(kind.value_type), **bounds}
        case _:
            return _scalar(kind)


def _object(kind: inspect.StructType) -> Schema:
    schema: Schema = {
        "type": "object",
        "description": summary(kind.cls.__doc__),
        "properties": _properties(kind),
    }
    if required := [field.encode_name for field in kind.fields if field.required]:
        schema["required"] = required
    return _with_rules(schema, _rules_of(kind))


def _properties(kind: inspect.StructType) -> dict[str, Schema]:
    schemas = {field.encode_name: _schema(field.type, field.encode_name) for field in kind.fields}
    if kind.forbid_unknown_fields:  # in specs, not in a status
        for field in kind.fields:
            _for_people(schemas[field.encode_name], field)
    return schemas


def _for_people(schema: Schema, field: inspect.Field) -> None:
    """Adds the default to the description, and permits null only where it differs from leaving the field out.

    `kubectl explain` shows neither type nor fields of a nullable field unless server and client are 1.27 or newer.
    """
    if field.default is None and field.encode_name not in _TAKEN_BACK_BY_NULL:
        schema.pop("nullable", None)
    if note := _default(field):
        schema["description"] = f"{schema['description']} Default: {note}."


def _default(field: inspect.Field) -> str:
    """A default for people; empty if there is none, or if it only means "not set"."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    match default:
        case None | "" | () | msgspec.Struct() | msgspec.UnsetType() | msgspec.NODEFAULT:
            return ""
        case str():
            return default
        case Mapping():
            return ""
    return msgspec.json.encode(default).decode()


def _union(kind: inspect.UnionType, name: str) -> Schema:
    others = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    structs = [member for member in others if isinstance(member, inspect.StructType)]
    schema = _schema(others[0], name) if len(others) == 1 else _tagged(structs)
    if len(others) < len(kind.types) and "enum" not in schema:  # Kubernetes refuses a CRD whose enum contains null
        schema["nullable"] = True
    return schema


def _tagged(structs: Sequence[inspect.StructType]) -> Schema:
    """One object for all members of a tagged union."""
    tag_field = str(structs[0].tag_field)
    tags = [str(member.tag) for member in structs]
    meanings = " ".join(f"{member.tag}: {summary(member.cls.__doc__)}" for member in structs)
    properties: dict[str, Schema] = {tag_field: {"type": "string", "enum": tags, "description": meanings}}
    for member in structs:
        for field, schema in _properties(member).items():
            note = f"For {tag_field} {member.tag}: {schema['description']}"
            if field in properties:
                note = _shared(properties[field], schema, note)
            properties[field] = schema | {"description": note}
    schema = {"type": "object", "properties": properties, "required": [tag_field]}
    return _with_rules(schema, tuple(_rules_of_members(structs, tag_field)))


def _rules_of_members(structs: Sequence[inspect.StructType], tag_field: str) -> Iterator[CelRule]:
    """The rules of each member, and those for the fields that not all members have."""
    names = dict.fromkeys(field.encode_name for member in structs for field in member.fields)
    for name in names:
        tags = [str(member.tag) for member in structs if any(field.encode_name == name for field in member.fields)]
        if len(tags) < len(structs):
            message = f"{name} has no effect with a {tag_field} other than {' and '.join(tags)}, leave it out"
            yield CelRule(f"!has(self.{name}) || self.{tag_field} in {tags}", message)
    for member in structs:
        unless = f"self.{tag_field} != '{member.tag}'"
        for field in member.fields:
            if field.required:
                name = field.encode_name
                yield CelRule(f"{unless} || has(self.{name})", f"{name} is required for {tag_field} {member.tag}")
        for found in _rules_of(member):
            yield CelRule(f"{unless} || ({found.rule})", found.message)


def _shared(first: Schema, second: Schema, note: str) -> str:
    """The description of a field that two members have, with `note` as the second member's description. Raises
    TypeError if their schemas differ otherwise, because one object can have only one of them."""
    if first | {"description": ""} != second | {"description": ""}:
        raise TypeError(f"members of a union have different fields of the same name: {note}")
    return f"{first['description']} {note}"


def _list(kind: inspect.VarTupleType, name: str) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(kind.item_type)}
    if kind.min_length:
        schema["minItems"] = kind.min_length
    if kind.max_length is not None:
        schema["maxItems"] = kind.max_length
    if name in _MAP_KEYS:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [_MAP_KEYS[name]]}
    else:
        schema["x-kubernetes-list-type"] = "set" if name in _SETS else "atomic"
    return schema


def _scalar(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            wide = kind.le is None or kind.le > _INT32_MAX
            return {"type": "integer", "format": "int64" if wide else "int32"} | _bounds(kind)
        case inspect.FloatType():
            return {"type": "number", "format": "double"} | _bounds(kind)
        case inspect.LiteralType(values=values):
            return {"type": "string", "enum": list(values)}
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [member.value for member in cls]}
        case inspect.StrType():
            return {"type": "string"} | _text_bounds(kind)
    raise TypeError(f"no schema for {kind!r}")


def _bounds(kind: inspect.IntType | inspect.FloatType) -> Schema:
    schema: Schema = {}
    for key, inclusive, exclusive in (("minimum", kind.ge, kind.gt), ("maximum", kind.le, kind.lt)):
        if inclusive is not None:
            schema[key] = inclusive
        elif exclusive is not None:
            schema |= {key: exclusive, f"exclusive{key.capitalize()}": True}
    return schema


def _text_bounds(kind: inspect.StrType) -> Schema:
    found = {"minLength": kind.min_length, "maxLength": kind.max_length, "pattern": kind.pattern}
    return {key: value for key, value in found.items() if value is not None}


def _rules_of(kind: inspect.StructType) -> tuple[CelRule, ...]:
    return tuple(CelRule(found.cel, found.message) for found in _RULES.get(kind.cls, ()) if found.cel)


def _with_rules(schema: Schema, rules: Sequence[CelRule]) -> Schema:
    if rules:
        schema["x-kubernetes-validations"] = [rule._asdict() for rule in rules]
    return schema
