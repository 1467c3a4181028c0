"""The deadline of a rollout of groups. A LeaderWorkerSet has none of its own: it is derived from times that the cluster
shows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from slipstream_core.manifest.status import ConditionType

from slipstream_operator.children.identity import is_group
from slipstream_operator.children.workload import progress_deadline_s
from slipstream_operator.reconcile.pair_case import PairCase
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.status.conditions import find, read_time
from slipstream_operator.types import KubeObject


def group_deadline(case: PairCase) -> datetime | None:
    """When a rollout is stuck if it makes no progress until then; None without a LeaderWorkerSet, since a Deployment's
    controller has the deadline.

    As with a Deployment, progress is a change of the spec, the begin of the rollout, and a pod that becomes ready.
    """
    live = case.observed.deployment
    if case.pair is None or live is None or not is_group(case.pair):
        return None
    allowed = timedelta(seconds=progress_deadline_s(case.pair.serving))
    progress = [*_spec_changes(live), *(time for pod in case.observed.pods for time in _ready_since(pod))]
    known = find(case.prior.conditions, ConditionType.PROGRESSING)
    since = read_time(known.last_transition_time) if known is not None else None
    if known is None or since is None or (known.status != "True" and known.reason != Reason.DEADLINE_EXCEEDED):
        return case.now + allowed  # the rollout begins, or is complete
    if known.status == "True":
        return max([since, *progress]) + allowed
    return max([time for time in progress if time > since], default=since - allowed) + allowed


def _spec_changes(live: KubeObject) -> Iterator[datetime]:
    """The times at which clients last changed the object, other than its status."""
    for entry in live["metadata"].get("managedFields", []):
        if entry.get("subresource") != "status" and (time := read_time(entry.get("time") or "")) is not None:
            yield time


def _ready_since(pod: KubeObject) -> Iterator[datetime]:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        is_ready = (condition.get("type"), condition.get("status")) == ("Ready", "True")
        if is_ready and (time := read_time(condition.get("lastTransitionTime") or "")) is not None:
            yield time
