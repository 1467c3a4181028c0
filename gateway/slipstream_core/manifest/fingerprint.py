"""Hashes of manifest objects as written: of a whole route, and of the spec that classes are judged under."""

from __future__ import annotations

import hashlib
from functools import cache

import msgspec

from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.rollout import Analysis, Rollback, Thresholds, effective
from slipstream_core.manifest.speculation_policy import ClassRule, SpeculationPolicy, SpeculationPolicySpec, rule_of


def written_hash(*parts: object) -> str:
    """16 hexadecimal digits, equal exactly when `parts` are equal."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


class SpecHashes:
    """Hashes of the spec that classes are judged under, each 16 hexadecimal digits. A class restarts if its own is
    another one (`of`). `whole` is that of everything, which gateways of version 0.1 compare.

    They leave out fields that do not change how requests are answered: kill switches, `enabled`, `retryToken` (which
    clears a rollback by itself), bounds on requests, and the number and addresses of servers. That of a class also
    leaves out the rules of other classes, and how the operator judges (`analysis`, `rollback`) or gateways keep
    (`capture`, `parityTexts`). Fields at their default are left out as well, so that a version with more fields does
    not clear a rollback.
    """

    def __init__(self, pair: ModelPair | None, policy: SpeculationPolicy) -> None:
        written = None if pair is None else _judged(pair)
        spec = msgspec.structs.replace(policy.spec, kill_switch=None, retry_token=None, enabled=True)
        self.whole = written_hash(written, beyond_defaults(spec))
        self._shared = written_hash(written, beyond_defaults(_shared_by_classes(spec)))
        self._spec = spec
        self._own: dict[str, str] = {}

    def of(self, request_class: str) -> str:
        """The hash of what concerns a class, `task/length`."""
        found = self._own.get(request_class)
        if found is None:
            rule = rule_of(self._spec, request_class) or ClassRule(name=request_class)
            limits = effective(self._spec.thresholds, rule.thresholds)
            own = msgspec.structs.replace(rule, name=request_class, thresholds=limits)
            found = self._own[request_class] = written_hash(self._shared, beyond_defaults(own))
        return found


def _shared_by_classes(spec: SpeculationPolicySpec) -> SpeculationPolicySpec:
    judging = {"analysis": Analysis(), "rollback": Rollback(), "capture": None, "parity_texts": False}
    return msgspec.structs.replace(spec, classes=(), thresholds=Thresholds(), **judging)


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
