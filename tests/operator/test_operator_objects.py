"""A real operator before a real API server: what it makes of objects, what it puts right, and what it never touches."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from slipstream_core.manifest.reports import GatewayReport, WithheldServer, applied_key, object_key, report_lease

from tests.operator.operator_process import RESYNC_S, Cluster, OperatorProcess, grant, pair_spec
from tests.support.kube import KubeApiServer, KubeError
from tests.support.polling import eventually

FIELD_MANAGER = "slipstream-operator"
CHILDREN = {"deployments", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets"}
QUIET_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def cluster(kube: KubeApiServer, crds: None) -> Cluster:
    return grant(kube, kube.namespace("operator-objects"))


@pytest.fixture(autouse=True)
def _running(operator: OperatorProcess) -> None:
    """Every test here is about the one that runs."""


def all_children(cluster: Cluster, name: str) -> dict[str, dict]:
    return eventually(lambda: found if (found := cluster.children(name)).keys() == CHILDREN else None)


def play_ready(cluster: Cluster, name: str) -> None:
    """As the Deployment's controller, with its pods up."""
    deployment = all_children(cluster, name)["deployments"]
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}],
    }
    cluster.client.patch_status(cluster.path("deployments", f"slipstream-{name}"), status)


def test_pair_gets_its_children_and_both_objects_their_status(cluster: Cluster) -> None:
    pair = cluster.pair("first")
    cluster.policy("first")
    children = all_children(cluster, "first")
    for child in children.values():
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("ModelPair", pair["metadata"]["uid"], True)
    cluster.wait_condition("modelpairs", "first", "Ready", "False")
    cluster.wait_condition("speculationpolicies", "first", "ResolvedRefs", "True")
    play_ready(cluster, "first")
    cluster.wait_condition("modelpairs", "first", "Ready", "True")
    cluster.wait_condition("speculationpolicies", "first", "Ready", "True")


def test_parents_keep_their_spec_annotations_and_finalizers(cluster: Cluster) -> None:
    cluster.pair("untouched")
    cluster.policy("untouched")
    for plural in ("modelpairs", "speculationpolicies"):
        cluster.wait_condition(plural, "untouched", "ResolvedRefs", "True")
        found = cluster.client.get(cluster.path(plural, "untouched"))
        metadata = found["metadata"]
        assert metadata["generation"] == 1
        assert "finalizers" not in metadata
        assert "annotations" not in metadata
        ours = [entry for entry in metadata["managedFields"] if entry["manager"] == FIELD_MANAGER]
        assert [list(entry["fieldsV1"]) for entry in ours] == [["f:status"]]


def test_deleted_child_comes_back(cluster: Cluster) -> None:
    cluster.pair("deleted")
    before = all_children(cluster, "deleted")
    for plural, child in before.items():
        cluster.client.delete(cluster.path(plural, child["metadata"]["name"]))
    after = eventually(
        lambda: (
            found
            if (found := cluster.children("deleted")).keys() == CHILDREN
            and all(found[plural]["metadata"]["uid"] != before[plural]["metadata"]["uid"] for plural in CHILDREN)
            else None
        )
    )
    assert after["deployments"]["spec"] == before["deployments"]["spec"]


def test_hand_edited_child_is_put_right_and_what_others_add_stays(cluster: Cluster) -> None:
    cluster.pair("edited")
    image = all_children(cluster, "edited")["deployments"]["spec"]["template"]["spec"]["containers"][0]["image"]
    path = cluster.path("deployments", "slipstream-edited")
    edited = cluster.client.get(path)
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = "somebody/else"
    edited["metadata"]["labels"]["team"] = "blue"
    cluster.client.replace(path, edited)

    def put_right() -> bool:
        found = cluster.client.get(path)
        return found["spec"]["template"]["spec"]["containers"][0]["image"] == image

    eventually(put_right)
    assert cluster.client.get(path)["metadata"]["labels"]["team"] == "blue"


def test_child_that_lost_its_label_or_owner_gets_it_back(cluster: Cluster) -> None:
    cluster.pair("stripped")
    before = all_children(cluster, "stripped")
    cluster.patch("services", "slipstream-stripped", {"metadata": {"labels": None}})
    cluster.patch("configmaps", "slipstream-stripped", {"metadata": {"ownerReferences": None}})
    for plural, field in (("services", "labels"), ("configmaps", "ownerReferences")):
        wanted = before[plural]["metadata"]
        eventually(
            lambda plural=plural, field=field, wanted=wanted: (
                (found := cluster.children("stripped")[plural]["metadata"]).get(field) == wanted[field]
                and found["uid"] == wanted["uid"]
            )
        )


def test_field_that_is_wanted_no_more_goes_away(cluster: Cluster) -> None:
    spec = pair_spec("shrinking")
    spec["serving"]["nodeSelector"] = {"disk": "fast"}
    cluster.declare("ModelPair", "shrinking", spec)
    path = cluster.path("deployments", "slipstream-shrinking")
    all_children(cluster, "shrinking")
    assert cluster.client.get(path)["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    cluster.patch("modelpairs", "shrinking", {"spec": {"serving": {"nodeSelector": None}}})
    eventually(lambda: "nodeSelector" not in cluster.client.get(path)["spec"]["template"]["spec"])


def test_hand_edited_status_is_put_right(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.pair("painted")
    cluster.policy("painted")
    for plural in ("modelpairs", "speculationpolicies"):
        cluster.wait_condition(plural, "painted", "ResolvedRefs", "True")
    eventually(lambda: cluster.condition("speculationpolicies", "painted", "Ready"))
    eventually(lambda: _is_settled(cluster, "painted"))
    _wait_quiet(operator)  # both are what they will be
    paths = [cluster.path(plural, "painted") for plural in ("modelpairs", "speculationpolicies")]
    before = [cluster.client.get(path)["status"] for path in paths]
    forged = {"name": "code/long", "phase": "Promoted", "share": 1.0}
    cluster.client.patch_status(paths[1], {"state": "Splendid", "classes": [forged], "conditions": None})
    cluster.client.patch_status(paths[0], {"state": "Splendid", "conditions": [], "speculating": "8/8"})
    eventually(lambda: [cluster.client.get(path)["status"] for path in paths] == before)


def test_engine_that_others_run_has_no_children(cluster: Cluster) -> None:
    cluster.pair("leaving")
    all_children(cluster, "leaving")
    engine = {
        "kind": "external",
        "arms": {"plain": {"protocol": "openai", "endpoints": ["http://vllm:8000"], "model": "m"}},
    }
    gone = {"spec": {"engine": engine, "target": None, "draft": None, "serving": None}}
    cluster.patch("modelpairs", "leaving", gone)
    eventually(lambda: not cluster.children("leaving"))


def test_foreign_object_of_a_childs_name_is_left_alone_and_said(cluster: Cluster) -> None:
    foreign = {"metadata": {"name": "slipstream-taken"}, "data": {"mine": "1"}}
    cluster.client.create(cluster.path("configmaps"), foreign)
    cluster.pair("taken")
    message = cluster.wait_condition("modelpairs", "taken", "Ready", "False")
    assert "ConfigMap/slipstream-taken" in eventually(
        lambda: found if "slipstream-taken" in (found := _ready(cluster, "taken")) else None
    ), message
    found = cluster.client.get(cluster.path("configmaps", "slipstream-taken"))
    assert found["data"] == {"mine": "1"}
    assert "ownerReferences" not in found["metadata"]


def test_a_pair_that_is_created_again_at_once_takes_over_the_children_of_the_deleted_one(cluster: Cluster) -> None:
    """Kubernetes removes them a moment later, and the servers need not end meanwhile. Nothing removes them here."""
    cluster.pair("again")
    before = all_children(cluster, "again")["deployments"]["metadata"]["uid"]
    cluster.client.delete(cluster.path("modelpairs", "again"))
    uid = cluster.pair("again")["metadata"]["uid"]

    def owners() -> list[list[str]]:
        found = all_children(cluster, "again").values()
        return [[owner["uid"] for owner in child["metadata"]["ownerReferences"]] for child in found]

    eventually(lambda: owners() == [[uid]] * len(CHILDREN))
    assert cluster.children("again")["deployments"]["metadata"]["uid"] == before
    cluster.wait_condition("modelpairs", "again", "Stalled", "False")
    assert not [event for event in cluster.events("again") if event["reason"] == "ChildrenRejected"]


def _ready(cluster: Cluster, name: str) -> str:
    found = cluster.condition("modelpairs", name, "Ready")
    return "" if found is None else found[2]


@pytest.mark.parametrize(
    ("name", "node_affinity"),
    [("invalid", {"requiredDuringSchedulingIgnoredDuringExecution": {}}), ("mistyped", "yes")],  # status 422 and 500
)
def test_child_that_the_server_refuses_is_said_and_the_rest_is_made(
    cluster: Cluster, name: str, node_affinity: object
) -> None:
    spec = pair_spec(name)
    spec["serving"]["affinity"] = {"nodeAffinity": node_affinity}
    cluster.declare("ModelPair", name, spec)
    eventually(lambda: f"Deployment/slipstream-{name}" in _ready(cluster, name))
    assert eventually(lambda: [event["reason"] for event in cluster.events(name)]).count("ChildrenRejected") == 1
    assert cluster.children(name).keys() == CHILDREN - {"deployments"}
    cluster.patch("modelpairs", name, {"spec": {"serving": {"affinity": None}}})
    all_children(cluster, name)
    eventually(lambda: f"slipstream-{name}" not in _ready(cluster, name))


def test_policies_for_one_pair_follow_each_other(cluster: Cluster) -> None:
    cluster.policy("elder", "contested")
    message = cluster.wait_condition("speculationpolicies", "elder", "ResolvedRefs", "False")
    assert "contested" in message
    cluster.pair("contested")
    cluster.wait_condition("speculationpolicies", "elder", "ResolvedRefs", "True")
    time.sleep(1.1)  # creation times have whole seconds
    cluster.policy("younger", "contested")
    message = cluster.wait_condition("speculationpolicies", "younger", "ResolvedRefs", "False")
    assert "ModelPair contested already has SpeculationPolicy elder" in message
    cluster.client.delete(cluster.path("speculationpolicies", "elder"))
    cluster.wait_condition("speculationpolicies", "younger", "ResolvedRefs", "True")
    cluster.client.delete(cluster.path("modelpairs", "contested"))
    cluster.wait_condition("speculationpolicies", "younger", "ResolvedRefs", "False")


def test_spec_that_cannot_be_served_is_said_and_its_children_stay(cluster: Cluster) -> None:
    cluster.pair("broken")
    before = all_children(cluster, "broken")
    cluster.patch("modelpairs", "broken", {"spec": {"draft": {"source": None}}})
    said = cluster.wait_condition("modelpairs", "broken", "Accepted", "False", "InvalidSpec")
    assert "spec.draft.source" in said
    assert "generation 1 stays in use" in said
    # Gateways go by the last good spec, so that nothing here may close them.
    cluster.wait_condition("modelpairs", "broken", "ResolvedRefs", "True")
    assert cluster.client.get(cluster.path("modelpairs", "broken"))["status"]["lastGood"]["generation"] == 1
    after = cluster.children("broken")
    assert after["deployments"]["metadata"]["uid"] == before["deployments"]["metadata"]["uid"]
    assert after["deployments"]["metadata"]["generation"] == before["deployments"]["metadata"]["generation"]


def test_kill_lands_in_the_status_by_an_event_and_is_an_event(by_events: Cluster) -> None:
    cluster = by_events
    cluster.pair("killed")
    cluster.policy("killed")
    cluster.wait_condition("modelpairs", "killed", "KillSwitchActive", "False")
    uid = cluster.client.get(cluster.path("modelpairs", "killed"))["metadata"]["uid"]
    key = applied_key(object_key(cluster.namespace, "ModelPair", "killed"), uid)
    lease = _report(cluster, {key: 1})
    cluster.client.create(cluster.path("leases"), lease)
    eventually(lambda: _gateways(cluster, "killed") == {"synced": 1, "total": 1, "oldestGeneration": 1})

    flipped = cluster.patch("modelpairs", "killed", {"spec": {"killSwitch": True}})
    newest: int = flipped["metadata"]["generation"]
    eventually(lambda: _gateways(cluster, "killed") == {"synced": 0, "total": 1, "oldestGeneration": newest - 1})
    cluster.client.apply(cluster.path("leases", "gateway-1"), _report(cluster, {key: newest}), field_manager="tests")
    eventually(lambda: _gateways(cluster, "killed") == {"synced": 1, "total": 1, "oldestGeneration": newest})
    cluster.wait_condition("modelpairs", "killed", "KillSwitchActive", "True")
    cluster.wait_condition("speculationpolicies", "killed", "KillSwitchActive", "True")
    assert eventually(lambda: [event for event in cluster.events("killed") if "kill" in event["message"].lower()])


def test_annotations_without_effect_are_said_with_what_would_be_accepted(cluster: Cluster) -> None:
    cluster.pair("annotated")
    cluster.policy("annotated")
    cluster.wait_condition("modelpairs", "annotated", "Accepted", "True")
    approval = "slipstream.dev/approve-revision"
    annotations = {"metadata": {"annotations": {approval: "deadbeef"}}}
    cluster.patch("modelpairs", "annotated", annotations)
    said = f"the annotation {approval}: 'deadbeef' has no effect: no revision waits for an approval"
    eventually(lambda: said in cluster.wait_condition("modelpairs", "annotated", "Accepted"))
    assert eventually(lambda: [event for event in cluster.events("annotated") if event["message"] == said])
    cluster.patch("speculationpolicies", "annotated", annotations)
    unknown = f"metadata.annotations[{approval}] (policies have none)"
    events = eventually(lambda: [event for event in cluster.events("annotated") if unknown in event["message"]])
    assert {event["involvedObject"]["kind"] for event in events} == {"SpeculationPolicy"}


def test_server_that_may_not_speculate_is_in_the_status_and_an_event(cluster: Cluster) -> None:
    cluster.pair("broken-engine")
    cluster.wait_condition("modelpairs", "broken-engine", "KillSwitchActive", "False")
    server = WithheldServer(
        server="http://10.0.0.1:8000",
        capabilities=("sampled_speculation",),
        reason="engine_not_lossless",
        detail="sampled answers are not the target's",
    )
    key = object_key(cluster.namespace, "ModelPair", "broken-engine")
    watched = (cluster.namespace,)
    report = GatewayReport(name="checks-engines", namespaces=watched, applied={}, renewed=datetime.now(UTC))
    lease = report_lease(replace(report, withheld={key: (server,)}), namespace=cluster.namespace)
    cluster.client.create(cluster.path("leases"), lease)
    cluster.wait_condition("modelpairs", "broken-engine", "SpeculationAvailable", "False")
    status = cluster.client.get(cluster.path("modelpairs", "broken-engine"))["status"]
    [condition] = [each for each in status["conditions"] if each["type"] == "SpeculationAvailable"]
    assert condition["reason"] == "EngineNotLossless"
    assert condition["message"].startswith("http://10.0.0.1:8000 may not use sampled_speculation (1 of ")
    events = eventually(
        lambda: [one for one in cluster.events("broken-engine") if one["reason"] == "EngineNotLossless"]
    )
    assert events[0]["type"] == "Warning"
    cured = report_lease(replace(report, renewed=datetime.now(UTC)), namespace=cluster.namespace)
    cluster.client.apply(cluster.path("leases", "checks-engines"), cured, field_manager="tests")
    cluster.wait_condition("modelpairs", "broken-engine", "SpeculationAvailable", "True")
    cluster.client.delete(cluster.path("leases", "checks-engines"))


def test_gateway_that_died_counts_no_more(by_events: Cluster) -> None:
    by_events.pair("left")
    by_events.client.create(by_events.path("leases"), _report(by_events, {}))
    eventually(lambda: (_gateways(by_events, "left") or {}).get("total") == 1, "the gateway counts")
    # 25 s later, by the operator's clock.
    eventually(lambda: (_gateways(by_events, "left") or {}).get("total") == 0, "the gateway counts no more")


def test_objects_that_others_deleted_are_forgotten(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.pair("short-lived")
    all_children(cluster, "short-lived")
    cluster.client.delete(cluster.path("modelpairs", "short-lived"))
    time.sleep(RESYNC_S)
    for plural in CHILDREN:  # nobody collects garbage here
        cluster.client.delete(cluster.path(plural, "slipstream-short-lived"))
    time.sleep(1)
    assert not cluster.children("short-lived")
    assert operator.is_alive()


def test_nothing_is_written_when_nothing_happens(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.pair("quiet")
    all_children(cluster, "quiet")
    # Without Redis it is news, once, that there is none; after a while in which it might only be late.
    for policy in cluster.client.items(cluster.path("speculationpolicies")):
        eventually(lambda name=policy["metadata"]["name"]: _is_settled(cluster, name))
    # Those that are refused are tried again and again, which is no write; gateways of other tests die meanwhile.
    for lease in cluster.client.items(cluster.path("leases")):
        cluster.client.delete(cluster.path("leases", lease["metadata"]["name"]))
    _wait_quiet(operator)
    versions, written = cluster.versions(), operator.written()
    eventually(_two_resyncs(operator), within_s=QUIET_WITHIN_S)
    assert operator.written() == written, cluster.client.items(cluster.path("events"))[-3:]
    assert cluster.versions() == versions


def test_rights_are_enough_and_no_more_than_it_takes(cluster: Cluster, operator: OperatorProcess) -> None:
    assert "forbidden" not in operator.log()
    assert "Traceback" not in operator.log()


def test_probes_and_metrics_answer(cluster: Cluster, operator: OperatorProcess) -> None:
    cluster.pair("measured")
    cluster.wait_condition("modelpairs", "measured", "Accepted", "True")
    cluster.patch("modelpairs", "measured", {"spec": {"draft": {"source": None}}})
    cluster.wait_condition("modelpairs", "measured", "Accepted", "False")
    assert operator.is_alive()
    assert operator.is_ready()
    assert operator.metric("slipstream_operator_synced") == 1
    eventually(lambda: operator.metric("slipstream_operator_transitions_total") > 0)
    assert operator.metric("slipstream_operator_watch_missed") == 0


def test_conditions_are_counted_and_those_that_are_over_are_not(cluster: Cluster, operator: OperatorProcess) -> None:
    def refused() -> float:
        return operator.metric("slipstream_operator_conditions", condition="Accepted", reason="InvalidSpec")

    cluster.pair("counted")
    cluster.wait_condition("modelpairs", "counted", "Accepted", "True")
    before = refused()
    source = cluster.client.get(cluster.path("modelpairs", "counted"))["spec"]["draft"]["source"]
    cluster.patch("modelpairs", "counted", {"spec": {"draft": {"source": None}}})
    eventually(lambda: refused() == before + 1)
    cluster.patch("modelpairs", "counted", {"spec": {"draft": {"source": source}}})
    eventually(lambda: refused() == before)


def _gateways(cluster: Cluster, name: str) -> dict | None:
    status = cluster.client.get(cluster.path("modelpairs", name)).get("status") or {}
    return status.get("gateways")


def _report(cluster: Cluster, applied: dict[str, int]) -> dict:
    report = GatewayReport(
        name="gateway-1", namespaces=(cluster.namespace,), applied=applied, renewed=datetime.now(UTC)
    )
    return report_lease(report, namespace=cluster.namespace)


def _is_settled(cluster: Cluster, policy: str) -> bool:
    resolved = cluster.condition("speculationpolicies", policy, "ResolvedRefs")
    analysis = cluster.condition("speculationpolicies", policy, "AnalysisConclusive")
    return resolved is not None and (resolved[0] == "False" or (analysis or ("", "", ""))[1] == "StoreUnreachable")


def _looks(operator: OperatorProcess) -> float:
    """How often it has looked at a pair and was content. Where nothing happens, it does so once in a resync."""
    return operator.metric("slipstream_operator_reconcile_seconds_count", kind="ModelPair", outcome="ok")


def _two_resyncs(operator: OperatorProcess) -> Callable[[], bool]:
    """Whether two whole resyncs have passed from this call on, by what the operator has done: it may be slow."""
    begun, pairs = _looks(operator), operator.metric("slipstream_operator_objects", kind="ModelPair")
    return lambda: _looks(operator) >= begun + 3 * pairs  # the first of three may have been half over


def _wait_quiet(operator: OperatorProcess) -> None:
    """Until two whole resyncs passed without a write."""
    writes, passed = operator.writes(), _two_resyncs(operator)

    def quiet() -> bool:
        nonlocal writes, passed
        if (now := operator.writes()) != writes:
            writes, passed = now, _two_resyncs(operator)
        return passed()

    eventually(quiet, within_s=QUIET_WITHIN_S)


def test_object_of_an_unknown_namespace_is_not_ours(kube: KubeApiServer, cluster: Cluster, namespace: str) -> None:
    other = Cluster(kube.client(), namespace)
    other.pair("elsewhere")
    time.sleep(RESYNC_S)
    assert not other.children("elsewhere")
    with pytest.raises(KubeError, match="not found"):
        other.client.get(other.path("deployments", "slipstream-elsewhere"))
