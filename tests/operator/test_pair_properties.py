"""What holds of every plan, whatever the pair and whatever the cluster says of it."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.resources import parse_resource
from slipstream_core.manifest.status import GatewaysStatus
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed, PairPlan

from tests.operator.pair_objects import live_deployment, pod, preflight_ended, preflight_status
from tests.operator.pair_strategies import served_pairs
from tests.support.manifests import manifest

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    raw = draw(served_pairs)
    accepted = parse_resource(raw).item is not None
    observed: dict[str, Any] = {
        "problems": draw(st.sampled_from([(), (Problem("spec.model", "taken"),)])),
        "ignored": draw(st.sampled_from([(), ("spec.foo",)])),
        "rejected": draw(st.sampled_from([(), (Problem("Deployment/x", "invalid"),)])),
        "policy_killed": draw(st.booleans()),
        "gateways": GatewaysStatus(synced=draw(st.integers(0, 3)), total=3),
    }
    if accepted and draw(st.booleans()):
        replicas = draw(st.integers(0, 4))
        ready, updated = draw(st.integers(0, replicas)), draw(st.integers(0, replicas))
        observed["deployment"] = live_deployment(raw, replicas=replicas, ready=ready, updated=updated)
        container = draw(
            st.sampled_from(
                [
                    preflight_ended(compatible=True, message="same"),
                    preflight_ended(compatible=False, message="first, token 'a'"),
                    preflight_status(exit_code=1, message="no config.json"),
                ]
            )
        )
        observed["pods"] = (pod(raw, initContainerStatuses=[container]),)
    return Observed(raw=raw, **observed)


@QUICK
@given(observed=observations(), minutes=st.integers(-60, 600))
def test_reconciling_again_changes_nothing_and_tells_nothing(observed: Observed, minutes: int):
    first = reconcile_pair(observed, NOW)
    again = reconcile_pair(_with_status_of(observed, first), NOW + timedelta(minutes=minutes))
    # A revision counts as served once the spec has been acted on.
    assert again.status == msgspec.structs.replace(first.status, served=again.status.served)
    assert again.children == first.children
    assert again.notes == ()
    later = reconcile_pair(_with_status_of(observed, again), NOW + timedelta(minutes=minutes))
    assert (later.status, later.notes) == (again.status, ())


def _with_status_of(observed: Observed, plan: PairPlan) -> Observed:
    return msgspec.structs.replace(observed, raw={**observed.raw, "status": msgspec.to_builtins(plan.status)})


@QUICK
@given(observed=observations())
def test_what_was_observed_is_not_changed(observed: Observed):
    before = copy.deepcopy(observed)
    reconcile_pair(observed, NOW)
    assert observed == before


@QUICK
@given(observed=observations())
def test_children_are_planned_exactly_for_a_pair_without_problems(observed: Observed):
    made = reconcile_pair(observed, NOW)
    sound = parse_resource(observed.raw).item is not None and not observed.problems
    assert (made.children is not None) == sound


@QUICK
@given(spec=JSON_VALUES, status=JSON_VALUES)
def test_no_spec_and_no_status_is_too_broken_for_a_status(spec: Any, status: Any):
    raw = manifest("ModelPair", "x", spec, namespace="prod", uid="1", generation=1)
    made = reconcile_pair(Observed(raw={**raw, "status": status}), NOW)
    assert made.children is None
    assert made.status.state == "Invalid"
