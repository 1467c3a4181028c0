"""What Flux, `kubectl wait` and Argo CD make of a pair's and a policy's conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lupa.lua54 import LuaRuntime
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.status import GatewaysStatus

from tests.operator.pair_objects import EXTERNAL_SPEC, JSON, live_deployment, pair_object, pod
from tests.operator.policy_world import World
from tests.operator.test_pair_canary import World as PairWorld
from tests.operator.test_pair_status import RAW, SERVED, after, plan

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "kubernetes" / "argocd-cm.yaml"
INVALID = {**pair_object(generation=2), "spec": {**RAW["spec"], "maxDraftTokens": 0}}
ROLLING = live_deployment(RAW, updated=1)
UNREADY = live_deployment(RAW, ready=0)
STUCK = live_deployment(RAW, ready=0)
STUCK["status"]["conditions"] = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
LOOPING = {"name": "triton", "ready": False, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
CRASHED = pod(RAW, containerStatuses=[LOOPING])
REJECTED = (Problem("Deployment/slipstream-acme", "quota exceeded"),)


def kstatus(item: JSON) -> str:
    """The rules for kinds that kstatus does not know (cli-utils, pkg/kstatus/status, `checkGenericProperties` and
    `checkReadyCondition`)."""
    status = item.get("status") or {}
    if status.get("observedGeneration", item["metadata"]["generation"]) != item["metadata"]["generation"]:
        return "InProgress"
    found = {each["type"]: each["status"] for each in status.get("conditions") or []}
    if found.get("Reconciling") == "True":
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    return "Current" if found.get("Ready", "True") == "True" else "InProgress"


def is_waited_for(item: JSON, condition: str = "Ready") -> bool:
    """Whether `kubectl wait --for=condition=...` returns: it ignores a condition of an older generation."""
    return any(
        (each["type"], each["status"]) == (condition, "True")
        and each["observedGeneration"] >= item["metadata"]["generation"]
        for each in item["status"]["conditions"]
    )


def argo(item: JSON, kind: str = "ModelPair") -> str:
    script = yaml.safe_load(EXAMPLE.read_text())["data"][f"resource.customizations.health.slipstream.dev_{kind}"]
    lua = LuaRuntime(unpack_returned_tuples=True)
    health = lua.eval(f"function(obj) {script} end")(lua.table_from(item, recursive=True))
    assert health.message
    return str(health.status)


def written(raw: JSON, made: Any) -> JSON:
    return {**raw, "status": msgspec.to_builtins(made.status)}


SERVING = after(RAW, plan(RAW), **SERVED)
CASES = {
    "new": (RAW, plan(RAW), ("InProgress", False, "Progressing")),
    "served": (RAW, SERVING, ("Current", True, "Healthy")),
    "external": (pair_object(EXTERNAL_SPEC), plan(pair_object(EXTERNAL_SPEC)), ("Current", True, "Healthy")),
    "rolling": (
        RAW,
        after(RAW, SERVING, deployment=live_deployment(RAW, updated=1)),
        ("InProgress", True, "Progressing"),
    ),
    "invalid": (INVALID, after(INVALID, SERVING, **SERVED), ("Failed", False, "Degraded")),
    "not seen yet": (pair_object(generation=2), SERVING, ("InProgress", False, "Progressing")),
    "killed": (
        pair_object(killSwitch=True),
        plan(pair_object(killSwitch=True), gateways=GatewaysStatus(synced=1, total=1), **SERVED),
        ("Current", True, "Suspended"),
    ),
    "scaled to zero": (
        pair_object(serving={"replicas": 0}),
        plan(pair_object(serving={"replicas": 0}), deployment=live_deployment(RAW, replicas=0, ready=0)),
        ("Current", True, "Suspended"),
    ),
    "crashing": (RAW, plan(RAW, deployment=UNREADY, pods=(CRASHED,)), ("InProgress", False, "Progressing")),
    "stuck": (RAW, plan(RAW, deployment=STUCK, pods=(CRASHED,)), ("Failed", False, "Degraded")),
    "refused": (RAW, plan(RAW, rejected=REJECTED), ("Failed", False, "Degraded")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pair_s_state_is_read_alike(case: str) -> None:
    raw, made, (state, waited_for, health) = CASES[case]
    item = written(raw, made)
    assert (kstatus(item), is_waited_for(item), argo(item)) == (state, waited_for, health)


def test_a_pair_without_status_waits_for_the_operator() -> None:
    assert argo(RAW) == "Progressing"


def test_a_new_revision_is_in_progress_until_it_is_promoted_and_failed_after_a_rollback() -> None:
    world = PairWorld()
    assert kstatus(written(world.raw, world.plan)) == "Current"
    world.change(target={"revision": "2"})
    item = written(world.raw, world.plan)
    assert (kstatus(item), is_waited_for(item), argo(item)) == ("InProgress", False, "Progressing")


@pytest.mark.parametrize("case", ["disabled", "killed", "pair at zero"])
def test_a_policy_that_is_at_rest_is_current(case: str) -> None:
    """`kubectl wait` returns, and no tool takes it for broken, while its classes are held."""
    world = World()
    world.pair_at_zero = case == "pair at zero"
    if case == "disabled":
        world.respec(enabled=False)
    elif case == "killed":
        world.respec(killSwitch=True)
    world.serve_and_look(10)
    item = {**world.raw, "status": msgspec.to_builtins(world.status)}
    assert (kstatus(item), is_waited_for(item)) == ("Current", True)
    assert argo(item, "SpeculationPolicy") == "Suspended"
    assert world.condition("Held").status == "True"


def test_a_policy_whose_classes_still_advance_is_current() -> None:
    world = World()
    world.serve_and_look(10)
    item = {**world.raw, "status": msgspec.to_builtins(world.status)}
    assert (kstatus(item), argo(item, "SpeculationPolicy")) == ("Current", "Healthy")
    world.respec(classes=[{"name": "code", "mode": "sideways"}])
    world.look()
    item = {**world.raw, "status": msgspec.to_builtins(world.status)}
    assert (kstatus(item), argo(item, "SpeculationPolicy")) == ("Failed", "Degraded")
