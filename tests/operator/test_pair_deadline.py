"""A rollout of groups that makes no progress is stuck after the deadline of a Deployment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed, PairPlan, ServingDefaults

from tests.operator.pair_objects import GROUP_SPEC, JSON, UID, children, pair_object
from tests.support.foreign_kinds import WITH_GROUPS

BEGIN = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
DEADLINE_S = 600 + 900
RAW = pair_object(GROUP_SPEC, serving={"startupSeconds": 600, "replicas": 2})


def workload(*, updated: int, ready: int, changed: datetime = BEGIN, raw: JSON = RAW) -> JSON:
    """The pair's LeaderWorkerSet, as the operator reads it from its cache."""
    group = children(raw)["LeaderWorkerSet"]
    written = {"manager": "slipstream-operator", "operation": "Apply", "time": changed.isoformat()}
    seen = {"manager": "lws", "subresource": "status", "time": (BEGIN + timedelta(days=9)).isoformat()}
    group["metadata"] |= {"generation": 1, "managedFields": [written, seen]}
    group["status"] = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": updated, "readyReplicas": ready}
    cache = ObjectCache()
    cache.put(group)
    found = cache.workload_of(ObjectKey(Kind.MODEL_PAIR, "prod", "acme"), UID)
    assert found is not None
    return found


class Rollout:
    """The plans one after the other, each with the status of the one before."""

    def __init__(self, raw: JSON = RAW) -> None:
        self.raw = raw

    def look(self, after_s: float, live: JSON, *pods: JSON) -> PairPlan:
        now, defaults = (
            BEGIN + timedelta(seconds=after_s),
            ServingDefaults(foreign_kinds=WITH_GROUPS),
        )
        made = reconcile_pair(Observed(raw=self.raw, deployment=live, pods=pods, defaults=defaults), now)
        self.raw = {**self.raw, "status": msgspec.to_builtins(made.status)}
        return made


def progressing(made: PairPlan) -> tuple[str, str]:
    [found] = [condition for condition in made.status.conditions if condition.type == "Progressing"]
    return found.status, found.reason


def ready_pod(after_s: float) -> JSON:
    since = (BEGIN + timedelta(seconds=after_s)).isoformat()
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    return {"metadata": {"name": "acme-0"}, "status": {"conditions": [condition]}}


ROLLING, STUCK = ("True", "RollingOut"), ("False", "DeadlineExceeded")


def test_a_rollout_without_progress_is_stuck_at_the_deadline() -> None:
    rollout, live = Rollout(), workload(updated=0, ready=2)
    made = rollout.look(0, live)
    assert (progressing(made), made.next_look_s) == (ROLLING, DEADLINE_S)
    made = rollout.look(1000, live)
    assert (progressing(made), made.next_look_s) == (ROLLING, DEADLINE_S - 1000)
    made = rollout.look(DEADLINE_S, live)
    assert (progressing(made), made.next_look_s) == (STUCK, None)
    assert (made.status.state, [note.reason for note in made.notes]) == ("Stuck", ["DeadlineExceeded"])
    later = rollout.look(DEADLINE_S + 5000, live)
    assert (progressing(later), later.notes) == (STUCK, ())


def test_a_pod_that_becomes_ready_is_progress() -> None:
    rollout, live = Rollout(), workload(updated=1, ready=2)
    rollout.look(0, live)
    made = rollout.look(1000, live, ready_pod(700))
    assert made.next_look_s == DEADLINE_S - 300
    assert progressing(rollout.look(700 + DEADLINE_S - 1, live, ready_pod(700))) == ROLLING
    assert progressing(rollout.look(700 + DEADLINE_S, live, ready_pod(700))) == STUCK
    assert progressing(rollout.look(4000, live, ready_pod(3900))) == ROLLING


def test_a_new_spec_gets_the_time_anew() -> None:
    rollout = Rollout()
    rollout.look(0, workload(updated=0, ready=2))
    assert progressing(rollout.look(DEADLINE_S, workload(updated=0, ready=2))) == STUCK
    changed = workload(updated=0, ready=2, changed=BEGIN + timedelta(seconds=2000))
    made = rollout.look(2100, changed)
    assert (progressing(made), made.next_look_s) == (ROLLING, DEADLINE_S - 100)


def test_a_server_that_fails_long_after_the_rollout_is_not_stuck_at_once() -> None:
    rollout = Rollout()
    assert progressing(rollout.look(0, workload(updated=2, ready=2))) == ("False", "Complete")
    made = rollout.look(9000, workload(updated=2, ready=1))
    assert (progressing(made), made.next_look_s) == (ROLLING, DEADLINE_S)
    assert progressing(rollout.look(9000 + DEADLINE_S, workload(updated=2, ready=1))) == STUCK
    assert progressing(rollout.look(20_000, workload(updated=2, ready=2))) == ("False", "Complete")


@pytest.mark.parametrize("part", [{"managedFields": [{"time": "yesterday"}]}, {}])
def test_times_that_cannot_be_read_are_no_progress(part: dict[str, Any]) -> None:
    rollout, live = Rollout(), workload(updated=0, ready=2)
    live["metadata"] = {key: value for key, value in live["metadata"].items() if key != "managedFields"} | part
    rollout.look(0, live)
    assert progressing(rollout.look(DEADLINE_S, live)) == STUCK
