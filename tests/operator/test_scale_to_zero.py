"""The number of servers that the operator sets itself: the last one goes without requests, the first one comes with
one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest.reports import LATELY_S
from slipstream_core.manifest.status import GatewaysStatus
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Demand, Observed, PairPlan

from tests.operator.pair_objects import EMBEDDED_SPEC, JSON, live_deployment, pair_object

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
IDLE_S = 300
RAW = pair_object(EMBEDDED_SPEC, serving={"autoscaling": {"minReplicas": 0, "maxReplicas": 4, "idleSeconds": IDLE_S}})
REPORTED = GatewaysStatus(synced=1, total=1, oldest_generation=1)


def plan(raw: JSON = RAW, *, prior: PairPlan | None = None, now: datetime = NOW, **observed: Any) -> PairPlan:
    status = {} if prior is None else {"status": msgspec.to_builtins(prior.status)}
    return reconcile_pair(Observed(raw={**raw, **status}, **{"gateways": REPORTED, **observed}), now)


def servers(replicas: int, *, ready: int | None = None, scaler: str = "slipstream-operator") -> JSON:
    live = live_deployment(RAW, replicas=replicas, ready=replicas if ready is None else ready)
    owner = {"manager": scaler, "operation": "Apply" if scaler == "slipstream-operator" else "Update"}
    live["metadata"]["managedFields"] = [{**owner, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    return live


def written(made: PairPlan) -> int | None:
    """The number of servers in the planned Deployment; None: it is left to another owner."""
    assert made.children is not None
    [deployment] = [child for child in made.children if child["kind"] == "Deployment"]
    found: int | None = deployment["spec"].get("replicas")
    return found


def has_autoscaler(made: PairPlan) -> bool:
    return any(child["kind"] == "HorizontalPodAutoscaler" for child in made.children or ())


def ready(made: PairPlan) -> tuple[str, str]:
    [found] = [condition for condition in made.status.conditions if condition.type == "Ready"]
    return found.status, found.reason


@pytest.fixture
def serving() -> PairPlan:
    """The plan at the moment when the first server became ready."""
    return plan(deployment=servers(1))


def test_a_new_pair_begins_with_one_server() -> None:
    """So that its weights are loaded and checked once; Kubernetes' own default is one."""
    assert written(plan(deployment=None)) is None
    assert has_autoscaler(plan(deployment=None))


def test_the_last_servers_go_after_the_idle_time(serving: PairPlan) -> None:
    last = NOW + timedelta(seconds=100)  # the last report of use, which gateways repeat for a minute
    due = last + timedelta(seconds=IDLE_S - LATELY_S)
    early = plan(prior=serving, now=due - timedelta(seconds=5), deployment=servers(3, scaler="hpa"), last_request=last)
    assert (written(early), early.next_look_s) == (None, pytest.approx(5.0))
    late = plan(prior=serving, now=due, deployment=servers(3, scaler="hpa"), last_request=last)
    assert written(late) == 0
    assert not has_autoscaler(late)


def test_a_pair_without_any_request_is_idle_from_its_first_ready_server(serving: PairPlan) -> None:
    early, late = (NOW + timedelta(seconds=IDLE_S + change) for change in (-1, 0))
    assert written(plan(prior=serving, now=early, deployment=servers(1))) == 1
    assert written(plan(prior=serving, now=late, deployment=servers(1))) == 0


@pytest.mark.parametrize(
    "observed",
    [
        {"demand": Demand(in_use=True)},
        {"gateways": GatewaysStatus()},
        {"deployment": servers(1, ready=0)},
    ],
    ids=["in use", "no gateway reports", "a server is loading"],
)
def test_servers_stay_while_requests_run_or_nothing_is_known(serving: PairPlan, observed: JSON) -> None:
    found = plan(prior=serving, now=NOW + timedelta(days=1), **{"deployment": servers(1), **observed})
    assert written(found) == 1


def test_a_waiting_request_starts_the_first_server() -> None:
    idle = plan(deployment=servers(0))
    assert (written(idle), ready(idle)) == (0, ("True", "Idle"))
    waking = plan(prior=idle, deployment=servers(0), demand=Demand(in_use=True, waiting=True))
    assert written(waking) == 1
    assert has_autoscaler(waking)
    loading = plan(prior=waking, deployment=servers(1, ready=0), demand=Demand(in_use=True, waiting=True))
    assert (written(loading), ready(loading)[0]) == (1, "False")


def test_a_first_server_that_never_becomes_ready_goes_after_its_deadline_and_the_idle_time() -> None:
    stuck = servers(1, ready=0)
    stuck["status"]["conditions"] = [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]
    late = plan(deployment=stuck)
    assert written(late) == 1
    after = NOW + timedelta(seconds=IDLE_S)
    assert written(plan(prior=late, now=after, deployment=stuck, demand=Demand(in_use=True, waiting=True))) == 1
    assert written(plan(prior=late, now=after, deployment=stuck)) == 0


def test_a_server_that_was_started_a_moment_ago_is_not_taken_for_an_idle_one() -> None:
    """The condition Ready was True while the pair was idle, and stays so until the first status without a server."""
    idle = plan(deployment=servers(0))
    later = NOW + timedelta(days=1)
    started = plan(prior=idle, now=later, deployment=servers(1, ready=0))
    ready_now = plan(prior=started, now=later, deployment=servers(1))
    assert (written(started), written(ready_now)) == (1, 1)


def test_a_higher_minimum_starts_a_server_and_keeps_it(serving: PairPlan) -> None:
    raw = pair_object(EMBEDDED_SPEC, serving={"autoscaling": {"minReplicas": 2, "maxReplicas": 4}})
    assert written(plan(raw, deployment=servers(0))) == 1
    assert written(plan(raw, prior=serving, now=NOW + timedelta(days=1), deployment=servers(2, scaler="hpa"))) is None


def test_replicas_of_zero_without_autoscaling_are_not_idle() -> None:
    raw = pair_object(EMBEDDED_SPEC, serving={"replicas": 0})
    assert ready(plan(raw, deployment=servers(0), demand=Demand(waiting=True))) == ("True", "ScaledToZero")


def test_the_last_good_spec_still_scales_from_and_to_zero(serving: PairPlan) -> None:
    """An invalid spec changes nothing else about the servers."""
    broken = {**RAW, "metadata": {**RAW["metadata"], "generation": 2}, "spec": {**RAW["spec"], "maxDraftTokens": 0}}
    served = plan(broken, prior=serving, deployment=servers(2, scaler="hpa"), demand=Demand(in_use=True))
    assert served.children is None
    idle = plan(broken, prior=serving, now=NOW + timedelta(days=1), deployment=servers(2, scaler="hpa"))
    assert written(idle) == 0
    assert written(plan(broken, prior=idle, deployment=servers(0), demand=Demand(waiting=True))) == 1
