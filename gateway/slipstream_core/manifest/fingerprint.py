"""Hashes of what was written: of a whole route, and of what a rollback was a verdict on."""

from __future__ import annotations

import hashlib
from functools import cache

import msgspec

from slipstream_core.manifest.objects import ModelPair, SpeculationPolicy


def written_hash(*parts: object) -> str:
    """16 hexadecimal digits, equal exactly where `parts` are."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def spec_hash(pair: ModelPair | None, policy: SpeculationPolicy) -> str:
    """What a rollback is tied to, as 16 hexadecimal digits: another one means that classes start anew.

    What does not change how requests are answered is left out: kill switches, `enabled`, `retryToken` (which clears a
    rollback by itself), and how many servers there are and where. So is what stands at its default: a version with
    more fields does not clear anything.
    """
    policy_spec = msgspec.structs.replace(policy.spec, kill_switch=None, retry_token=None, enabled=True)
    return written_hash(None if pair is None else _judged(pair), _beyond_defaults(policy_spec))


def _judged(pair: ModelPair) -> object:
    serving = pair.spec.serving
    image = None if serving is None else serving.image
    spec = msgspec.structs.replace(pair.spec, kill_switch=None, serving=None)
    return [image, _beyond_defaults(spec)]


def _beyond_defaults(value: object) -> object:
    """`value` as plain data, without the fields that have their defaults."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        kept: dict[str, object] = {} if config.tag_field is None else {config.tag_field: config.tag}
        for name, encoded, default in _fields(type(value)):
            item = getattr(value, name)
            if item != default:
                kept[encoded] = _beyond_defaults(item)
        return kept
    if isinstance(value, tuple):
        return [_beyond_defaults(item) for item in value]
    return value


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, object], ...]:
    """Name, name on the wire and default (one that nothing equals, where there is none) of every field."""
    return tuple((field.name, field.encode_name, _default(field)) for field in msgspec.structs.fields(kind))


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
