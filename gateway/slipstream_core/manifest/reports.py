"""A gateway's report of what it goes by: a Lease of `coordination.k8s.io/v1` that it renews.

The gateway writes it, the operator and `slipstream kill` read it. A Lease, because that is how Kubernetes' own nodes
say that they are alive: small, and without a kind of its own. What was applied stands in one annotation, which
servers may not speculate in another, which cannot be reached in a third, and what clients ask for in a fourth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from slipstream_core.manifest.naming import COMPONENT, PART_OF, PART_OF_SLIPSTREAM

REPORT_COMPONENT = "gateway-report"
REPORT_SELECTOR = f"{PART_OF}={PART_OF_SLIPSTREAM},{COMPONENT}={REPORT_COMPONENT}"
APPLIED_ANNOTATION = "slipstream.dev/applied"
WITHHELD_ANNOTATION = "slipstream.dev/withheld"
UNREACHABLE_ANNOTATION = "slipstream.dev/unreachable"
IN_USE_ANNOTATION = "slipstream.dev/in-use"
# A gateway that has died is known to be silent before the 30 s are over that `slipstream kill` waits by default.
RENEW_S = 8.0
EXPIRES_S = 25

_UID_DIGITS = 8  # enough to tell namesakes apart; a whole one for every object would halve what fits into a report
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class WithheldServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a gateway keeps from speculating. `capabilities` are the kinds of requests, `reason` is the code
    that decisions give (`types.Reason`), `detail` one sentence."""

    server: str
    capabilities: tuple[str, ...]
    reason: str
    detail: str = ""


class UnreachableServers(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway cannot reach of a pair: `unreachable` of its `total` servers, the first few by their addresses."""

    servers: tuple[str, ...]
    unreachable: int
    total: int


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway process goes by.

    `namespaces` are those that it watches, empty for all. `applied` holds the generation of every object that it has
    applied, by `applied_key`; an older gateway's has bare `namespace/Kind/name`, which says nothing of the uid.
    `withheld` holds the servers that it keeps from speculating, by the `object_key` of their pair, and `unreachable`
    those that do not answer, of pairs that name their servers; None: it has not looked yet. `in_use` are the pairs,
    by `object_key`, that clients have asked for within the last minute: no times, since clocks differ.
    """

    name: str
    namespaces: tuple[str, ...]
    applied: Mapping[str, int]
    renewed: datetime
    withheld: Mapping[str, Sequence[WithheldServer]] = {}
    unreachable: Mapping[str, UnreachableServers] | None = None
    in_use: Sequence[str] = ()

    def watches(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def generation_of(self, key: str, uid: str | None = None) -> int | None:
        """The generation of the object `namespace/Kind/name` of that uid that it goes by; None where it does not know
        it, or only a namesake, or does not say which. Without `uid`: of whichever bears the name."""
        if uid is not None:
            return self.applied.get(applied_key(key, uid))
        return next((found for name, found in self.applied.items() if object_key_of(name) == key), None)


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A report as it is watched. `first` is when it was seen first, `sign` its gateway's latest sign of life, both by
    the watcher's own clock: a gateway's clock may be wrong, and it is alive as long as it writes."""

    report: GatewayReport
    first: datetime
    sign: datetime

    def silent_for(self, now: datetime) -> timedelta:
        return now - self.sign

    def is_alive(self, now: datetime) -> bool:
        return self.silent_for(now) < timedelta(seconds=EXPIRES_S)


def sighted(before: Sighting | None, report: GatewayReport, now: datetime) -> Sighting:
    """`report` as it is seen `now`, after `before`. At first sight there is only the gateway's own word for its age."""
    if before is None:
        return Sighting(report=report, first=now, sign=min(report.renewed, now))
    return Sighting(report=report, first=before.first, sign=before.sign if report == before.report else now)


class _Applied(msgspec.Struct, frozen=True):
    namespaces: tuple[str, ...] = ()
    applied: dict[str, int] = {}


def object_key(namespace: str, kind: str, name: str) -> str:
    """How reports call an object."""
    return f"{namespace}/{kind}/{name}"


def pair_object_key(pair: str) -> str:
    """How reports call the pair `namespace/name`."""
    namespace, _, name = pair.rpartition("/")
    return object_key(namespace, "ModelPair", name)


def applied_key(key: str, uid: str) -> str:
    """The object `key` as that very one: an object that is deleted and made again begins with generation 1 again."""
    return f"{key}#{uid[:_UID_DIGITS]}"


def object_key_of(applied: str) -> str:
    """The object's `namespace/Kind/name` of an `applied_key`."""
    return applied.partition("#")[0]


def report_lease(
    report: GatewayReport, *, namespace: str, owners: tuple[Mapping[str, Any], ...] = ()
) -> dict[str, Any]:
    """The Lease of `report`. `owners` are its owner references: the gateway's pod, with which it goes away."""
    applied = msgspec.json.encode(_Applied(report.namespaces, dict(report.applied))).decode()
    metadata: dict[str, Any] = {
        "name": report.name,
        "namespace": namespace,
        "labels": {PART_OF: PART_OF_SLIPSTREAM, COMPONENT: REPORT_COMPONENT},
        "annotations": {
            APPLIED_ANNOTATION: applied,
            WITHHELD_ANNOTATION: msgspec.json.encode(report.withheld).decode(),
            UNREACHABLE_ANNOTATION: msgspec.json.encode(report.unreachable).decode(),
            IN_USE_ANNOTATION: msgspec.json.encode(report.in_use).decode(),
        },
    }
    if owners:
        metadata["ownerReferences"] = [dict(owner) for owner in owners]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": report.name,
            "leaseDurationSeconds": EXPIRES_S,
            "renewTime": report.renewed.astimezone(UTC).strftime(_TIME_FORMAT),
        },
    }


def read_report(lease: Mapping[str, Any]) -> GatewayReport | None:
    """The report in a Lease; None where it is not one, whoever wrote it."""
    try:
        metadata, spec = lease["metadata"], lease["spec"]
        applied = msgspec.json.decode(metadata["annotations"][APPLIED_ANNOTATION], type=_Applied)
        return GatewayReport(
            name=str(metadata["name"]),
            namespaces=applied.namespaces,
            applied=applied.applied,
            renewed=datetime.fromisoformat(spec["renewTime"]),
            withheld=_read_withheld(metadata["annotations"]),
            unreachable=_read_unreachable(metadata["annotations"]),
            in_use=_read_in_use(metadata["annotations"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _read_withheld(annotations: Mapping[str, str]) -> dict[str, tuple[WithheldServer, ...]]:
    """Nothing where it cannot be read: a kill is confirmed all the same."""
    try:
        return msgspec.json.decode(
            annotations.get(WITHHELD_ANNOTATION, "{}"), type=dict[str, tuple[WithheldServer, ...]]
        )
    except (ValueError, RecursionError):
        return {}


def _read_unreachable(annotations: Mapping[str, str]) -> dict[str, UnreachableServers] | None:
    try:
        return msgspec.json.decode(
            annotations.get(UNREACHABLE_ANNOTATION, "null"), type=dict[str, UnreachableServers] | None
        )
    except (ValueError, RecursionError):
        return None


def _read_in_use(annotations: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(annotations.get(IN_USE_ANNOTATION, "[]"), type=tuple[str, ...])
    except (ValueError, RecursionError):
        return ()
