"""A gateway's report of the configuration that it has applied: a Lease of `coordination.k8s.io/v1` that it renews.

The gateway writes it; the operator and `slipstream kill` read it. It is a Lease because Kubernetes' own nodes report
their liveness that way: small, and without a kind of our own. Five annotations hold the applied generations, the
servers that may not speculate, the unreachable servers, the pairs that clients request, and the pairs whose requests
wait for a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from slipstream_core.manifest.naming import COMPONENT, PART_OF, PART_OF_SLIPSTREAM

REPORT_COMPONENT = "gateway-report"
REPORT_SELECTOR = f"{PART_OF}={PART_OF_SLIPSTREAM},{COMPONENT}={REPORT_COMPONENT}"
APPLIED_ANNOTATION = "slipstream.dev/applied"
WITHHELD_ANNOTATION = "slipstream.dev/withheld"
UNREACHABLE_ANNOTATION = "slipstream.dev/unreachable"
IN_USE_ANNOTATION = "slipstream.dev/in-use"
WAITING_ANNOTATION = "slipstream.dev/waiting"
# Shorter than the 30 s that `slipstream kill` waits by default, so that a dead gateway is recognised in time.
RENEW_S = 8.0
EXPIRES_S = 25
LATELY_S = 60
EVERY_PAIR = "*"
"""Stands in `in_use` for the pairs that it has no room for."""
EVERY_SERVER = "every server"
"""Stands in `withheld` for the servers of a pair that the gateway's own kill switch has stopped."""

_UID_DIGITS = 8  # enough to distinguish objects of one name; whole uids would halve the capacity of a report
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class WithheldServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a gateway keeps from speculating. `capabilities` are the kinds of requests, `reason` is the
    decision's reason code (`types.Reason`), `detail` is one sentence."""

    server: str
    capabilities: tuple[str, ...]
    reason: str
    detail: str = ""


class UnreachableServers(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a pair that a gateway cannot reach: `unreachable` of its `total` servers, and the addresses of the
    first few."""

    servers: tuple[str, ...]
    unreachable: int
    total: int


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that one gateway process has applied.

    `namespaces` are the watched ones, empty for all. `applied` holds the generation of every applied object by
    `applied_key`; an older gateway's report has bare `namespace/Kind/name`, without a uid. `withheld` holds the servers
    that may not speculate, by the `object_key` of their pair. `unreachable` holds the servers that do not answer, of
    pairs that name their servers; None: not checked yet. `in_use` are the pairs, by `object_key`, that clients have
    requested within `LATELY_S`. `waiting` are those of them with requests that wait for a first server. There are no
    times, because clocks differ.
    """

    name: str
    namespaces: tuple[str, ...]
    applied: Mapping[str, int]
    renewed: datetime
    withheld: Mapping[str, Sequence[WithheldServer]] = {}
    unreachable: Mapping[str, UnreachableServers] | None = None
    in_use: Sequence[str] = ()
    waiting: Sequence[str] = ()

    def watches(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def generation_of(self, key: str, uid: str | None = None) -> int | None:
        """The applied generation of the object `namespace/Kind/name` of that uid; None if the report has no such
        object, only one of another uid, or no uid. Without `uid`: of any object of that name."""
        if uid is not None:
            return self.applied.get(applied_key(key, uid))
        return next((found for name, found in self.applied.items() if object_key_of(name) == key), None)


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A report as seen by a watcher. `first` is the time of the first sighting, `sign` that of the latest renewal, both
    by the watcher's clock: a gateway's clock may be wrong, and each renewal proves that it is alive."""

    report: GatewayReport
    first: datetime
    sign: datetime

    def silent_for(self, now: datetime) -> timedelta:
        return now - self.sign

    def is_alive(self, now: datetime) -> bool:
        return self.silent_for(now) < timedelta(seconds=EXPIRES_S)


def sighted(before: Sighting | None, report: GatewayReport, now: datetime) -> Sighting:
    """`report` as seen at `now`, after `before`. At the first sighting its age is known from the gateway's clock
    alone."""
    if before is None:
        return Sighting(report=report, first=now, sign=min(report.renewed, now))
    return Sighting(report=report, first=before.first, sign=before.sign if report == before.report else now)


class _Applied(msgspec.Struct, frozen=True):
    namespaces: tuple[str, ...] = ()
    applied: dict[str, int] = {}


def object_key(namespace: str, kind: str, name: str) -> str:
    """The key of an object in reports."""
    return f"{namespace}/{kind}/{name}"


def pair_object_key(pair: str) -> str:
    """The key of the pair `namespace/name` in reports."""
    namespace, _, name = pair.rpartition("/")
    return object_key(namespace, "ModelPair", name)


def applied_key(key: str, uid: str) -> str:
    """The key of the object `key` with its uid: an object that is deleted and created again starts with generation 1
    again."""
    return f"{key}#{uid[:_UID_DIGITS]}"


def object_key_of(applied: str) -> str:
    """The `namespace/Kind/name` of an `applied_key`."""
    return applied.partition("#")[0]


def report_lease(
    report: GatewayReport, *, namespace: str, owners: tuple[Mapping[str, Any], ...] = ()
) -> dict[str, Any]:
    """The Lease of `report`. `owners` are its owner references: the gateway's pod, so that both are deleted
    together."""
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
            WAITING_ANNOTATION: msgspec.json.encode(report.waiting).decode(),
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
    """The report in a Lease; None if the Lease holds none."""
    try:
        metadata, spec = lease["metadata"], lease["spec"]
        applied = msgspec.json.decode(metadata["annotations"][APPLIED_ANNOTATION], type=_Applied)
        read = partial(_read_annotation, metadata["annotations"])
        return GatewayReport(
            name=str(metadata["name"]),
            namespaces=applied.namespaces,
            applied=applied.applied,
            renewed=datetime.fromisoformat(spec["renewTime"]),
            withheld=read(WITHHELD_ANNOTATION, dict[str, tuple[WithheldServer, ...]]) or {},
            unreachable=read(UNREACHABLE_ANNOTATION, dict[str, UnreachableServers] | None),
            in_use=read(IN_USE_ANNOTATION, tuple[str, ...]) or (),
            waiting=read(WAITING_ANNOTATION, tuple[str, ...]) or (),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _read_annotation(annotations: Mapping[str, str], name: str, kind: Any) -> Any:
    """None if there is no such annotation, or an unreadable one, so that a kill is still confirmed."""
    try:
        return msgspec.json.decode(annotations[name], type=kind)
    except (KeyError, ValueError, RecursionError):
        return None
