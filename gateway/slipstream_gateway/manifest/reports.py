"""A gateway's report of what it goes by: a Lease of `coordination.k8s.io/v1` that it renews.

The gateway writes it, the operator and `slipstream kill` read it. A Lease, because that is how Kubernetes' own nodes
say that they are alive: small, and without a kind of its own. What was applied stands in an annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from slipstream_gateway.manifest.naming import COMPONENT, PART_OF, PART_OF_SLIPSTREAM

REPORT_COMPONENT = "gateway-report"
REPORT_SELECTOR = f"{PART_OF}={PART_OF_SLIPSTREAM},{COMPONENT}={REPORT_COMPONENT}"
APPLIED_ANNOTATION = "slipstream.dev/applied"
RENEW_S = 10.0
EXPIRES_S = 40

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway process goes by.

    `namespaces` are those that it watches, empty for all. `applied` holds the generation of every object that it has
    applied, by `namespace/Kind/name`.
    """

    name: str
    namespaces: tuple[str, ...]
    applied: Mapping[str, int]
    renewed: datetime

    def is_alive(self, now: datetime) -> bool:
        """Whether it was renewed lately. `now` has a time zone."""
        return now - self.renewed < timedelta(seconds=EXPIRES_S)

    def watches(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def generation_of(self, key: str) -> int | None:
        """The generation of the object `namespace/Kind/name` that it goes by; None where it does not know it."""
        return self.applied.get(key)


class _Applied(msgspec.Struct, frozen=True):
    namespaces: tuple[str, ...] = ()
    applied: dict[str, int] = {}


def object_key(namespace: str, kind: str, name: str) -> str:
    """How reports call an object."""
    return f"{namespace}/{kind}/{name}"


def report_lease(
    report: GatewayReport, *, namespace: str, owners: tuple[Mapping[str, Any], ...] = ()
) -> dict[str, Any]:
    """The Lease of `report`. `owners` are its owner references: the gateway's pod, with which it goes away."""
    applied = msgspec.json.encode(_Applied(report.namespaces, dict(report.applied))).decode()
    metadata: dict[str, Any] = {
        "name": report.name,
        "namespace": namespace,
        "labels": {PART_OF: PART_OF_SLIPSTREAM, COMPONENT: REPORT_COMPONENT},
        "annotations": {APPLIED_ANNOTATION: applied},
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
        )
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError):
        return None
