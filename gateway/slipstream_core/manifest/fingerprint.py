"""Hashes of manifest objects as written: of a whole route, and of the spec that a rollback judged."""

from __future__ import annotations

import hashlib
from functools import cache

import msgspec

from slipstream_core.manifest.objects import ModelPair, SpeculationPolicy


def written_hash(*parts: object) -> str:
    """16 hexadecimal digits, equal exactly when `parts` are equal."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def spec_hash(pair: ModelPair | None, policy: SpeculationPolicy) -> str:
    """The hash of the spec that a rollback is tied to, as 16 hexadecimal digits. A different hash restarts the classes.

    It leaves out fields that do not change how requests are answered: kill switches, `enabled`, `retryToken` (which
    clears a rollback by itself), bounds on requests, and the number and addresses of servers. Fields at their default
    are left out as well, so that a version with more fields does not clear a rollback.
    """
    policy_spec = msgspec.structs.replace(policy.spec, kill_switch=None, retry_token=None, enabled=True)
    return written_hash(None if pair is None else _judged(pair), beyond_defaults(policy_spec))


def _judged(pair: ModelPair) -> object:
    serving = pair.spec.serving
    image = None if serving is None else serving.image
    spec = msgspec.structs.replace(pair.spec, kill_switch=None, serving=None, request_bounds=None)
    return [image, beyond_defaults(spec)]


def beyond_defaults(value: object) -> object:
    """`value` as plain data without the fields that are at their defaults."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        kept: dict[str, object] = {} if config.tag_field is None else {config.tag_field: config.tag}
        for name, encoded, default in _fields(type(value)):
            item = getattr(value, name)
            if item != default:
                kept[encoded] = beyond_defaults(item)
        return kept
    if isinstance(value, tuple):
        return [beyond_defaults(item) for item in value]
    return value


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, object], ...]:
    """Name, name on the wire and default of every field; a field without a default has one that equals nothing."""
    return tuple((field.name, field.encode_name, _default(field)) for field in msgspec.structs.fields(kind))


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
