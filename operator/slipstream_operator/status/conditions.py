"""Conditions by Kubernetes' API conventions: `lastTransitionTime` moves only when a status flips."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from slipstream_core.manifest.status import Condition, ConditionStatus, ConditionType

MAX_MESSAGE_CHARS = 4096
OF_NEWEST = frozenset(
    {
        *(ConditionType.ACCEPTED, ConditionType.KILL_SWITCH_ACTIVE),
        *(ConditionType.RECONCILING, ConditionType.STALLED),
    }
)
"""The conditions about the newest spec; the others are about the one that is served."""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


class Conditions:
    """The conditions of one object, built from the last ones.

    `prior` are the conditions of its last status. `generation` is the newest generation, and `served` that of the spec
    that is served, which all conditions but `OF_NEWEST` are about. `now` has a time zone. A condition that is
    not set again is dropped.
    """

    def __init__(
        self, prior: Iterable[Condition], generation: int, now: datetime, *, served: int | None = None
    ) -> None:
        self._prior = {condition.type: condition for condition in prior}
        self._generation = generation
        self._served = generation if served is None else served
        self._now = now.astimezone(UTC)
        self._said: dict[str, Condition] = {}

    def set(self, type: ConditionType, status: ConditionStatus, reason: str, message: str) -> tuple[Condition, ...]:
        """Set one condition, and return all that were set, in order."""
        self._said[type] = Condition(
            type=type.value,
            status=status,
            reason=str(reason),
            message=message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…",
            last_transition_time=self._transition_time(type, status),
            observed_generation=self._generation if type in OF_NEWEST else self._served,
        )
        return self.all

    @property
    def all(self) -> tuple[Condition, ...]:
        return tuple(self._said.values())

    def _transition_time(self, type: ConditionType, status: ConditionStatus) -> str:
        """The prior time while the status stays the same; else now, but never earlier than the prior time, since clocks
        may be set back."""
        now = rfc3339(self._now)
        prior = self._prior.get(type)
        before = read_time(prior.last_transition_time) if prior is not None else None
        if prior is None or before is None:
            return now
        return prior.last_transition_time if prior.status == status or before > self._now else now


def rfc3339(moment: datetime) -> str:
    """`moment`, which has a time zone, in Kubernetes' format: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime(_TIME_FORMAT)


def read_time(text: str) -> datetime | None:
    """The moment of an RFC 3339 time; None if `text` is no such time, or has no time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def seconds_of(time: str, otherwise: float) -> float:
    """An RFC 3339 time in seconds since 1970; `otherwise` if `time` is none."""
    moment = read_time(time)
    return otherwise if moment is None else moment.timestamp()


def find(conditions: Iterable[Condition], type: ConditionType) -> Condition | None:
    """The condition `type`; None where it is not set."""
    return next((condition for condition in conditions if condition.type == type), None)
