"""A pair's status: what each condition says, what the columns show, and what is told as an event."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.reports import EVERY_SERVER, UnreachableServers, WithheldServer
from slipstream_core.manifest.status import Condition, GatewaysStatus, ModelPairStatus, SpeculationPolicyStatus
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed, PairPlan, ServingDefaults

from tests.operator.pair_objects import (
    EMBEDDED_SPEC,
    EXTERNAL_SPEC,
    GROUP_SPEC,
    JSON,
    VLLM_SPEC,
    live_deployment,
    pair_object,
    pod,
    preflight_ended,
    preflight_status,
)
from tests.support.foreign_kinds import WITH_GROUPS

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
MISMATCH = "the draft's vocabulary differs from the target's in 2 entries; first, token 'a': id 1 in the target"


def plan(raw: JSON, *, now: datetime = NOW, **observed: Any) -> PairPlan:
    return reconcile_pair(Observed(raw=raw, **observed), now)


def after(raw: JSON, prior: PairPlan, *, now: datetime = NOW, **observed: Any) -> PairPlan:
    """The next plan, with the last one's status as the API server keeps it."""
    return plan({**raw, "status": msgspec.to_builtins(prior.status)}, now=now, **observed)


def condition(made: PairPlan, name: str) -> Condition:
    [found] = [condition for condition in made.status.conditions if condition.type == name]
    return found


def said(made: PairPlan, name: str) -> tuple[str, str]:
    found = condition(made, name)
    return found.status, found.reason


def noted(made: PairPlan) -> list[str]:
    return [note.reason for note in made.notes]


def headline(made: PairPlan) -> tuple[str, str]:
    return made.status.state, made.status.reason


RAW = pair_object()
SERVED: JSON = {"deployment": live_deployment(RAW)}


def test_a_served_pair_is_ready():
    made = plan(RAW, **SERVED)
    assert {each.type: (each.status, each.reason) for each in made.status.conditions} == {
        "Accepted": ("True", "Accepted"),
        "Ready": ("True", "MinimumReplicasReady"),
        "ResolvedRefs": ("True", "Resolved"),
        "TokenizerCompatible": ("Unknown", "NotChecked"),
        "SpeculationAvailable": ("Unknown", "NoGateway"),
        "Progressing": ("False", "Complete"),
        "KillSwitchActive": ("False", "NotKilled"),
        "Reconciling": ("False", "Current"),
        "Stalled": ("False", "NotStalled"),
    }
    assert condition(made, "Ready").message == "2 of 2 servers are ready"
    assert (made.status.replicas.ready, made.status.replicas.desired) == (2, 2)
    assert headline(made) == ("Ready", "MinimumReplicasReady")
    assert made.status.observed_generation == condition(made, "Ready").observed_generation == 1
    assert made.children is not None
    assert len(made.children) == 5


def test_a_new_pair_is_not_ready_and_that_is_no_news():
    made = plan(RAW)
    assert said(made, "Ready") == ("False", "NoReadyReplicas")
    assert condition(made, "Ready").message == "0 of 2 servers are ready"
    assert said(made, "Progressing") == ("True", "RollingOut")
    assert noted(made) == []


@pytest.mark.parametrize(
    "raw", [pair_object(EXTERNAL_SPEC), pair_object(engine={"endpoints": ["grpc://triton:8001"]}, serving=None)]
)
def test_servers_that_run_elsewhere_are_taken_as_ready(raw: JSON):
    made = plan(raw)
    assert made.children == ()
    assert said(made, "Ready") == ("True", "External")
    assert said(made, "TokenizerCompatible") == ("Unknown", "NotChecked")
    assert headline(made) == ("Ready", "External")


def test_revisions_that_all_servers_had_are_kept_in_order():
    first = after(RAW, plan(RAW), **SERVED)
    [revision] = first.status.served
    assert after(RAW, first, **SERVED).status.served == (revision,)
    other = pair_object(target={"source": "/models/other"}, generation=2)
    seen = after(other, first, **SERVED)  # its Deployment is not written yet
    assert seen.status.served == (revision,)
    assert after(other, seen, deployment=live_deployment(other, updated=1)).status.served == (revision,)
    assert after(other, seen, deployment=live_deployment(other, ready=1)).status.served == (revision,)
    rejected = (Problem("Deployment/slipstream-acme", "refused"),)
    assert after(other, seen, rejected=rejected, **SERVED).status.served == (revision,)
    rolled = after(other, seen, deployment=live_deployment(other))
    assert len(rolled.status.served) == 2
    assert rolled.status.served[1] == revision
    back = pair_object(generation=3)
    returned = after(back, after(back, rolled, deployment=live_deployment(other)), **SERVED)
    assert returned.status.served == rolled.status.served[::-1]
    asleep = live_deployment(other, replicas=0, ready=0)
    assert after(other, rolled, deployment=asleep).status.served == rolled.status.served


REFUSALS = [
    'pods "acme-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/'
    "gpu=4, limited: requests.nvidia.com/gpu=4",
    'pods "acme-1" is forbidden: maximum memory usage per Container is 4Gi, but limit is 8Gi',
    'pods "acme-1" is forbidden: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)',
    'pods "acme-1" is forbidden: no PriorityClass with name serving was found',
    'pods "acme-1" is forbidden: error looking up service account ml/serving: serviceaccount "serving" not found',
    'pods "acme-1" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
    'admission webhook "images.example.com" denied the request: the image has no signature',
    'Pod "acme-1" is invalid: spec.containers[0].resources.requests: Invalid value: "9": must be less than or equal',
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_pods_that_the_api_server_refuses_are_told_in_its_words(refusal: str):
    live = live_deployment(RAW, ready=0, updated=0)
    live["status"]["conditions"] = [
        {"type": "Progressing", "status": "True", "reason": "NewReplicaSetCreated"},
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refusal},
    ]
    made = after(RAW, plan(RAW), deployment=live)
    assert said(made, "Ready") == ("False", "FailedCreate")
    assert condition(made, "Ready").message == f"0 of 2 servers are ready; pods are refused: {refusal}"
    assert refusal in condition(made, "Progressing").message
    [note] = made.notes
    assert (note.type, note.reason) == ("Warning", "FailedCreate")
    assert refusal in note.message
    del live["status"]["conditions"][1]
    assert said(after(RAW, made, deployment=live), "Ready") == ("False", "NoReadyReplicas")


@pytest.mark.parametrize(
    ("reports", "status"), [((2, 2), "False"), ((2, 1), "True"), ((2, None), "True"), ((None,), "True"), ((), "True")]
)
def test_servers_of_the_operator_that_no_gateway_reaches_are_not_ready(reports: tuple[int | None, ...], status: str):
    seen = tuple(None if count is None else unreachable(count) for count in reports)
    made = plan(RAW, **SERVED, unreachable=seen)
    assert condition(made, "Ready").status == status
    told = condition(made, "Ready").message
    assert ("gateways cannot reach up to 2 of 2 servers: http://a:8000" in told) is bool(reports and reports[0])


def unreachable(count: int, total: int = 2) -> UnreachableServers:
    return UnreachableServers(servers=("http://a:8000",), unreachable=count, total=total)


def test_servers_that_run_elsewhere_are_unready_once_no_gateway_reaches_any():
    raw = pair_object(EXTERNAL_SPEC)
    first = plan(raw, unreachable=(None, None))
    assert said(first, "Ready") == ("True", "External")
    for some in ((unreachable(2), None), (unreachable(2), unreachable(1))):
        made = after(raw, first, unreachable=some)
        assert said(made, "Ready") == ("True", "External")
        assert "cannot reach up to 2 of 2 servers: http://a:8000" in condition(made, "Ready").message
        assert noted(made) == []
    gone = after(raw, first, unreachable=(unreachable(2), unreachable(2)))
    assert said(gone, "Ready") == ("False", "EndpointsUnreachable")
    assert headline(gone) == ("NotReady", "EndpointsUnreachable")
    assert noted(gone) == ["EndpointsUnreachable"]
    assert noted(after(raw, gone, unreachable=(None, None))) == ["External"]


def test_vllm_at_named_addresses_is_served_elsewhere_and_in_triton_by_nobody():
    made = plan(pair_object(EMBEDDED_SPEC | {"engine": {"kind": "vllm", "endpoints": ["http://vllm:8000"]}}))
    assert said(made, "Ready") == ("True", "External")
    assert made.children == ()
    made = plan(pair_object(EMBEDDED_SPEC | {"engine": {"kind": "vllm", "serving": "triton"}}))
    assert said(made, "Ready") == said(made, "Progressing") == ("False", "NotManaged")
    assert "set spec.engine.serving to openai" in condition(made, "Ready").message
    assert made.children == ()
    assert headline(made) == ("NotReady", "NotManaged")


def test_sources_of_our_package_are_not_for_vllm_in_a_cluster():
    made = plan(pair_object(EMBEDDED_SPEC | {"engine": {"kind": "vllm"}}))
    assert said(made, "Ready") == said(made, "Progressing") == ("False", "NotManaged")
    assert "embedded: sources are for a laptop" in condition(made, "Ready").message


def test_a_cluster_without_the_kinds_of_a_pool_runs_the_servers_and_says_what_is_missing():
    pool = {"endpointPicker": {"name": "epp"}, "gateway": {"name": "inference"}}
    raw = pair_object(VLLM_SPEC, serving={"inferencePool": pool})
    kinds = {"InferencePool", "HTTPRoute"}
    for there, missing in (
        (set(), "no kind InferencePool and HTTPRoute"),
        ({"InferencePool"}, "no kind HTTPRoute"),
        (kinds, ""),
    ):
        made = plan(raw, defaults=ServingDefaults(foreign_kinds=frozenset(there)))
        message = condition(made, "Ready").message
        assert (missing in message) if missing else ("inferencePool" not in message)
        found = {child["kind"] for child in made.children or ()}
        assert "Deployment" in found
        assert found & kinds == (set() if missing else kinds)


def test_a_cluster_that_cannot_run_groups_says_what_is_missing():
    made = plan(pair_object(GROUP_SPEC))
    assert said(made, "Ready") == said(made, "Progressing") == ("False", "KindMissing")
    assert "LeaderWorkerSet (leaderworkerset.x-k8s.io/v1)" in condition(made, "Ready").message
    assert headline(made) == ("NotReady", "KindMissing")
    assert made.children is None  # servers of one node, which may run, stay
    made = plan(pair_object(GROUP_SPEC), defaults=ServingDefaults(foreign_kinds=WITH_GROUPS))
    assert said(made, "Progressing") == ("True", "RollingOut")
    assert "the LeaderWorkerSet of the servers is being created" in condition(made, "Progressing").message


def test_one_ready_server_is_enough_and_the_others_trouble_is_told():
    live = live_deployment(RAW, replicas=3, ready=1, updated=2)
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    broken = pod(RAW, containerStatuses=[{"name": "triton", "image": "triton:1", "state": {"waiting": waiting}}])
    made = plan(RAW, deployment=live, pods=(broken,))
    ready = condition(made, "Ready")
    assert (ready.status, ready.reason) == ("True", "MinimumReplicasReady")
    assert ready.message.startswith("1 of 3 servers are ready; pod acme-1: its image triton:1 cannot be pulled")
    assert said(made, "Progressing") == ("True", "RollingOut")
    assert condition(made, "Progressing").message.startswith("2 of 3 servers have this spec, 1 are available")
    assert headline(made) == ("Rolling", "RollingOut")


def test_without_a_ready_server_the_reason_is_the_pods():
    scheduled = {"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "weights" not found'}
    live = live_deployment(RAW, ready=0)
    made = plan(RAW, deployment=live, pods=(pod(RAW, conditions=[scheduled]),))
    assert said(made, "Ready") == ("False", "ClaimNotFound")
    assert said(made, "ResolvedRefs") == ("False", "ClaimNotFound")
    assert headline(made) == ("Unresolved", "ClaimNotFound")


def test_a_rollout_that_takes_too_long_is_told_once():
    live = live_deployment(RAW, ready=2, updated=1)
    live["status"]["conditions"] = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    first = plan(RAW, **SERVED)
    made = after(RAW, first, deployment=live)
    assert said(made, "Progressing") == ("False", "DeadlineExceeded")
    assert noted(made) == ["DeadlineExceeded"]
    assert headline(made) == ("Stuck", "DeadlineExceeded")
    assert noted(after(RAW, made, deployment=live)) == []


def test_a_deployment_that_its_controller_has_not_seen_is_not_complete():
    live = live_deployment(RAW)
    live["metadata"]["generation"] = 2
    assert said(plan(RAW, deployment=live), "Progressing") == ("True", "RollingOut")


def test_no_servers_on_purpose_is_what_the_spec_asks_for():
    raw = pair_object(serving={"replicas": 0})
    made = plan(raw, deployment=live_deployment(raw, replicas=0, ready=0))
    assert said(made, "Ready") == ("True", "ScaledToZero")


def test_a_broken_spec_keeps_the_children_and_says_what_is_wrong():
    raw = pair_object(maxDraftTokens=99)
    made = plan(raw, **SERVED)
    assert made.children is None
    assert said(made, "Ready") == ("False", "InvalidSpec")
    message = condition(made, "Ready").message
    assert "spec.maxDraftTokens: must be between 1 and 32, got 99" in message
    assert "2 of 2 servers are ready" in message
    assert headline(made) == ("Invalid", "InvalidSpec")
    assert noted(made) == ["InvalidSpec"]


def test_a_broken_spec_leaves_the_last_good_one_in_use_until_it_is_put_right():
    broken = pair_object(maxDraftTokens=99, generation=2)
    made = after(broken, plan(RAW, **SERVED), **SERVED)
    assert made.children is None
    assert said(made, "Ready") == ("True", "MinimumReplicasReady")
    assert said(made, "Accepted") == ("False", "InvalidSpec")
    message = condition(made, "Accepted").message
    assert "spec.maxDraftTokens: must be between 1 and 32, got 99" in message
    assert "generation 1 stays in use" in message
    assert headline(made) == ("Invalid", "InvalidSpec")
    assert noted(made) == ["InvalidSpec"]
    assert noted(after(broken, made, **SERVED)) == []
    mended = after(pair_object(generation=3), made, **SERVED)
    assert (said(mended, "Accepted"), headline(mended)[0]) == (("True", "Accepted"), "Ready")
    assert noted(mended) == ["Accepted"]
    assert mended.status.last_good is not None
    assert mended.status.last_good.generation == 3


def test_what_was_found_of_the_last_good_tokenizer_outlives_a_broken_spec_and_the_pods():
    found = {"initContainerStatuses": [preflight_ended(compatible=False, message="id 3 differs")]}
    made = plan(RAW, pods=(pod(RAW, **found),), **SERVED)
    assert said(made, "TokenizerCompatible")[0] == "False"
    broken = after(pair_object(maxDraftTokens=99, generation=2), made, **SERVED)
    assert said(broken, "TokenizerCompatible")[0] == "False"
    assert (
        said(after(pair_object(maxDraftTokens=7, generation=3), broken, **SERVED), "TokenizerCompatible")[0]
        == "Unknown"
    )


def test_a_spec_too_large_for_the_status_is_not_kept():
    endpoints = [f"http://{'.'.join(['x' * 60] * 4)}.s{number}:8000" for number in range(256)]
    arm = {"protocol": "openai", "endpoints": endpoints, "model": "demo"}
    made = plan(pair_object(EXTERNAL_SPEC, engine={"kind": "external", "arms": {"plain": arm}}))
    assert said(made, "Accepted") == ("True", "Accepted")
    assert "too large" in condition(made, "Accepted").message
    assert made.status.last_good is None


def test_a_spec_that_is_no_mapping_still_gets_a_status():
    raw = {**RAW, "spec": ["?"]}
    made = plan(raw)
    assert made.children is None
    assert said(made, "Ready") == ("False", "InvalidSpec")


def test_another_pair_with_the_same_model_keeps_the_children_as_they_are():
    problem = Problem("spec.model", "ModelPair/other serves 'acme-8b' already")
    made = plan(RAW, problems=(problem,), **SERVED)
    assert made.children is None
    assert said(made, "ResolvedRefs") == ("False", "ModelNameTaken")
    assert said(made, "Ready") == ("False", "ModelNameTaken")
    assert condition(made, "ResolvedRefs").message == str(problem)
    assert noted(made) == ["ModelNameTaken"]


def test_children_that_the_api_server_refuses_are_named():
    rejected = (Problem("Deployment/slipstream-acme", "spec.template.spec.tolerations[0].operator: Invalid value"),)
    made = plan(RAW, rejected=rejected)
    assert said(made, "Ready") == ("False", "ChildrenRejected")
    assert said(made, "Progressing") == ("False", "ChildrenRejected")
    assert str(rejected[0]) in condition(made, "Ready").message
    served = plan(RAW, rejected=rejected, **SERVED)
    assert said(served, "Ready") == ("True", "MinimumReplicasReady")
    assert headline(served) == ("Stuck", "ChildrenRejected")


def test_fields_of_a_newer_version_are_named_once_and_do_no_harm():
    made = plan(RAW, ignored=("spec.foo", "spec.bar"), **SERVED)
    assert said(made, "Ready") == ("True", "MinimumReplicasReady")
    assert condition(made, "Ready").message.endswith("are ignored: spec.foo, spec.bar")
    assert "UnknownFieldsIgnored" in noted(made)
    assert noted(after(RAW, made, ignored=("spec.foo", "spec.bar"), **SERVED)) == []
    assert noted(after(RAW, made, ignored=("spec.foo",), **SERVED)) == ["UnknownFieldsIgnored"]


def annotated(**annotations: str) -> JSON:
    """The pair with Slipstream's annotations of these names."""
    names = {f"slipstream.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {**RAW, "metadata": {**RAW["metadata"], "annotations": {**names, "example.com/allow": "1"}}}


@pytest.mark.parametrize(("value", "events"), [("true", []), ("yes", ["AnnotationIgnored"])])
def test_an_annotation_that_permits_a_deletion_has_one_value(value: str, events: list[str]):
    made = plan(annotated(allow_delete=value), **SERVED)
    assert [event for event in noted(made) if event.startswith("Annotation")] == events
    assert ('as "true" only' in condition(made, "Accepted").message) == bool(events)


def test_an_annotation_with_an_unknown_name_is_answered_with_the_known_ones():
    made = plan(annotated(approve_revison="1"), **SERVED)
    known = "known: slipstream.dev/approve-revision, slipstream.dev/allow-rename, slipstream.dev/allow-delete"
    path = f"metadata.annotations[slipstream.dev/approve-revison] ({known})"
    assert condition(made, "Ready").message.endswith(f"are ignored: {path}")
    assert "UnknownFieldsIgnored" in noted(made)


def checked(raw: JSON, *, compatible: bool, message: str = MISMATCH) -> tuple[JSON, ...]:
    return (pod(raw, initContainerStatuses=[preflight_ended(compatible=compatible, message=message)]),)


def test_a_draft_with_another_tokenizer_is_refused_with_the_first_token():
    first = plan(RAW, **SERVED)
    made = after(RAW, first, pods=checked(RAW, compatible=False), **SERVED)
    assert said(made, "TokenizerCompatible") == ("False", "TokenizerMismatch")
    assert condition(made, "TokenizerCompatible").message.startswith(MISMATCH)
    assert said(made, "Ready") == ("True", "MinimumReplicasReady")
    assert headline(made) == ("Incompatible", "TokenizerMismatch")
    assert [(note.type, note.reason) for note in made.notes] == [("Warning", "TokenizerMismatch")]


def test_the_same_tokenizer_is_compatible():
    made = plan(RAW, pods=checked(RAW, compatible=True, message="the same 4 tokens"), **SERVED)
    assert said(made, "TokenizerCompatible") == ("True", "SameTokenizer")


def test_a_difference_that_one_pod_found_counts():
    pods = checked(RAW, compatible=True) + checked(RAW, compatible=False)
    assert said(plan(RAW, pods=pods, **SERVED), "TokenizerCompatible")[0] == "False"


def test_pods_of_other_weights_say_nothing_of_these():
    fixed = pair_object(draft={"revision": "2"}, generation=2)
    first = plan(RAW, pods=checked(RAW, compatible=False), **SERVED)
    made = after(fixed, first, pods=checked(RAW, compatible=False), **SERVED)
    assert said(made, "TokenizerCompatible") == ("Unknown", "NotChecked")
    done = after(fixed, made, pods=checked(fixed, compatible=True), **SERVED)
    assert said(done, "TokenizerCompatible") == ("True", "SameTokenizer")
    assert noted(done) == ["SameTokenizer"]


def test_what_was_found_stays_when_the_pod_has_gone():
    first = plan(RAW, pods=checked(RAW, compatible=False), **SERVED)
    assert said(after(RAW, first, **SERVED), "TokenizerCompatible") == ("False", "TokenizerMismatch")


@pytest.mark.parametrize("message", ["", "{", "null", '{"tokenizerCompatible": "yes"}', "[]"])
def test_a_report_that_cannot_be_read_is_none(message: str):
    broken = pod(RAW, initContainerStatuses=[preflight_status(exit_code=0, message=message)])
    made = plan(RAW, pods=(broken,), **SERVED)
    assert said(made, "TokenizerCompatible") == ("Unknown", "NotChecked")


def test_there_is_nothing_to_compare_without_a_draft_model():
    raw = pair_object(draft={"kind": "ngram", "source": None})
    assert said(plan(raw), "TokenizerCompatible") == ("True", "NoDraftModel")


def test_vllm_is_not_started_with_a_draft_of_another_tokenizer():
    raw = pair_object(VLLM_SPEC, draft={"kind": "model", "source": "acme/draft"})
    report = json.dumps({"tokenizerCompatible": False, "message": MISMATCH})
    seen = pod(raw, initContainerStatuses=[preflight_status(exit_code=1, message=report)])
    made = plan(raw, deployment=live_deployment(raw, replicas=1, ready=0), pods=(seen,))
    assert said(made, "TokenizerCompatible") == ("False", "TokenizerMismatch")
    assert condition(made, "TokenizerCompatible").message == f"{MISMATCH}. The server does not start"
    assert said(made, "Ready") == ("False", "TokenizerMismatch")
    assert condition(made, "Ready").message == f"0 of 1 servers are ready; pod acme-1: {MISMATCH}"


def test_tokenizers_that_vllm_s_pod_cannot_compare_are_unknown():
    raw = pair_object(VLLM_SPEC, draft={"kind": "model", "source": "acme/draft"})
    report = json.dumps({"tokenizerCompatible": None, "message": "the tokenizers could not be compared: no file"})
    seen = pod(raw, initContainerStatuses=[preflight_status(exit_code=0, message=report)])
    made = plan(raw, deployment=live_deployment(raw, replicas=1, ready=1), pods=(seen,))
    assert said(made, "TokenizerCompatible") == ("Unknown", "NotChecked")
    assert "no file" in condition(made, "TokenizerCompatible").message


def test_a_preflight_that_fails_says_why():
    failed = preflight_status(exit_code=1, message="checkpoint '/models/acme/target': there is no config.json")
    live = live_deployment(RAW, ready=0)
    made = plan(RAW, deployment=live, pods=(pod(RAW, initContainerStatuses=[failed]),))
    assert said(made, "Ready") == ("False", "PreflightFailed")
    assert "there is no config.json" in condition(made, "Ready").message
    assert said(made, "TokenizerCompatible") == ("Unknown", "NotChecked")


def gateways(synced: int, total: int) -> GatewaysStatus:
    return GatewaysStatus(synced=synced, total=total)


def withheld(reason: str, *, server: str = "http://a:8000", detail: str = "why") -> WithheldServer:
    return WithheldServer(server=server, capabilities=("sampled_speculation",), reason=reason, detail=detail)


def test_kill_at_a_gateway_itself_is_in_the_status():
    found = (withheld("kill_switch", server=EVERY_SERVER, detail="by Ada"), withheld("engine_not_lossless"))
    made = plan(RAW, gateways=gateways(3, 3), withheld=found, **SERVED)
    assert said(made, "SpeculationAvailable") == ("False", "GatewayKilled")
    assert condition(made, "SpeculationAvailable").message == (
        "every server may not use sampled_speculation (1 of 3 gateways): by Ada"
    )
    assert said(made, "KillSwitchActive") == ("False", "NotKilled")


def test_servers_that_may_not_speculate_are_told_with_the_gateways_that_say_so():
    first = plan(RAW, gateways=gateways(2, 2), **SERVED)
    assert said(first, "SpeculationAvailable") == ("True", "AllServers")
    found = (withheld("engine_not_lossless", detail="evidence 19.1"), withheld("engine_not_lossless"))
    made = after(RAW, first, gateways=gateways(2, 2), withheld=found, **SERVED)
    assert said(made, "SpeculationAvailable") == ("False", "EngineNotLossless")
    assert condition(made, "SpeculationAvailable").message == (
        "http://a:8000 may not use sampled_speculation (2 of 2 gateways): evidence 19.1"
    )
    assert headline(made) == ("Degraded", "EngineNotLossless")
    assert noted(made) == ["EngineNotLossless"]
    again = after(RAW, made, gateways=gateways(2, 2), withheld=found, **SERVED)
    assert noted(again) == []
    recovered = after(RAW, again, gateways=gateways(2, 2), **SERVED)
    assert headline(recovered)[0] == "Ready"


def test_worst_reason_is_told_and_a_server_that_was_not_checked_yet_is_no_news():
    first = plan(RAW, gateways=gateways(1, 1), **SERVED)
    starting = after(RAW, first, gateways=gateways(1, 1), withheld=(withheld("engine_unverified"),), **SERVED)
    assert said(starting, "SpeculationAvailable") == ("Unknown", "EngineUnverified")
    assert headline(starting)[0] == "Ready"
    assert noted(starting) == []
    both = (withheld("engine_unverified"), withheld("engine_cannot", server="http://b"))
    made = after(RAW, starting, gateways=gateways(1, 1), withheld=both, **SERVED)
    assert said(made, "SpeculationAvailable") == ("False", "EngineCannot")
    assert condition(made, "SpeculationAvailable").message.startswith("http://b may not use")


def test_reason_of_a_newer_gateway_and_many_servers():
    many = tuple(withheld("engine_asleep", server=f"http://{number}") for number in range(9))
    made = plan(RAW, gateways=gateways(1, 1), withheld=many, **SERVED)
    assert said(made, "SpeculationAvailable") == ("False", "EngineCannot")
    assert condition(made, "SpeculationAvailable").message.endswith(
        "http://4 may not use sampled_speculation (1 of 1 gateways): why; and 4 more"
    )


def test_a_kill_is_told_when_it_is_ordered_when_it_has_landed_and_when_it_is_lifted():
    killed = pair_object(killSwitch=True, generation=2)
    first = plan(RAW, **SERVED)
    ordered = after(killed, first, gateways=gateways(0, 2), **SERVED)
    half = after(killed, ordered, gateways=gateways(1, 2), **SERVED)
    landed = after(killed, half, gateways=gateways(2, 2), **SERVED)
    still = after(killed, landed, gateways=gateways(2, 2), **SERVED)
    lifted = after({**RAW, "metadata": {**RAW["metadata"], "generation": 3}}, still, **SERVED)
    told = [noted(each) for each in (ordered, half, landed, still, lifted)]
    assert told == [["Killed"], [], ["KillLanded"], [], ["KillLifted"]]
    assert said(half, "KillSwitchActive") == ("True", "Killed")
    assert "1 of 2 gateways have confirmed it" in condition(half, "KillSwitchActive").message
    assert said(landed, "KillSwitchActive") == ("True", "KilledEverywhere")
    assert headline(half)[0] == headline(landed)[0] == "Killed"


def test_a_kill_that_has_landed_before_it_was_seen_is_told_in_order():
    killed = pair_object(killSwitch=True)
    assert noted(plan(killed, gateways=gateways(2, 2), **SERVED))[-2:] == ["Killed", "KillLanded"]


def test_a_kill_of_the_policy_is_one_of_the_pair():
    of_policy = Condition(
        type="KillSwitchActive", status="True", reason="Killed", message="", last_transition_time="2026-11-20T12:00:00Z"
    )
    policy = SpeculationPolicyStatus(gateways=gateways(2, 2), conditions=(of_policy,))
    made = plan(RAW, policy=policy, policy_killed=True, gateways=gateways(0, 2), **SERVED)
    assert said(made, "KillSwitchActive") == ("True", "KilledEverywhere")
    assert "its SpeculationPolicy" in condition(made, "KillSwitchActive").message


def test_a_kill_of_a_policy_that_is_not_in_force_counts_no_gateways():
    made = plan(RAW, policy=SpeculationPolicyStatus(gateways=gateways(2, 2)), policy_killed=True, **SERVED)
    assert said(made, "KillSwitchActive") == ("True", "Killed")


def test_a_kill_is_obeyed_however_broken_the_spec_is():
    raw = pair_object(killSwitch=True, maxDraftTokens=99)
    made = plan(raw, **SERVED)
    assert said(made, "KillSwitchActive")[0] == "True"
    assert headline(made)[0] == "Killed"


def test_the_policys_figures_are_the_pairs_columns():
    policy = SpeculationPolicyStatus(speculating="3/8", accept="0.71", p95="1.9s")
    made = plan(RAW, policy=policy, gateways=gateways(1, 2), **SERVED)
    assert (made.status.speculating, made.status.accept, made.status.p95) == ("3/8", "0.71", "1.9s")
    assert made.status.gateways == gateways(1, 2)


def test_a_class_that_was_rolled_back_shows_at_the_pair():
    taken_back = Condition(
        type="RolledBack",
        status="True",
        reason="AcceptanceGuard",
        message="",
        last_transition_time="2026-11-20T12:00:00Z",
    )
    made = plan(RAW, policy=SpeculationPolicyStatus(conditions=(taken_back,)), **SERVED)
    assert headline(made) == ("RolledBack", "AcceptanceGuard")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"conditions": "none"}, id="not a list"),
        pytest.param({"conditions": [{"type": "Ready"}]}, id="half a condition"),
        pytest.param({"replicas": {"ready": -1}}, id="out of range"),
        pytest.param([], id="not a mapping"),
    ],
)
def test_a_status_written_by_hand_is_made_anew(status: Any):
    made = plan({**RAW, "status": status}, **SERVED)
    assert made.status == plan(RAW, **SERVED).status


def test_times_move_only_when_a_status_flips():
    later, last = NOW + timedelta(minutes=5), NOW + timedelta(minutes=9)
    first = plan(RAW, **SERVED)
    down = after(RAW, first, now=later, deployment=live_deployment(RAW, ready=0))
    assert condition(down, "Ready").last_transition_time == "2026-11-20T12:05:00Z"
    assert condition(down, "KillSwitchActive").last_transition_time == "2026-11-20T12:00:00Z"
    up = after(RAW, down, now=last, **SERVED)
    assert condition(up, "Ready").last_transition_time == "2026-11-20T12:09:00Z"
    assert noted(up) == ["MinimumReplicasReady"]


def test_a_clock_that_was_set_back_moves_no_time_back():
    first = plan(RAW, **SERVED)
    down = after(RAW, first, now=NOW - timedelta(hours=1), deployment=live_deployment(RAW, ready=0))
    assert condition(down, "Ready").last_transition_time == "2026-11-20T12:00:00Z"


def test_a_pair_of_the_demo_is_planned_as_any_other():
    made = plan(pair_object(EMBEDDED_SPEC))
    assert made.children is not None
    assert isinstance(made.status, ModelPairStatus)


PRIVILEGES = {
    "serviceAccountName": "other",
    "serviceAccountAnnotations": {"role": "x"},
    "capabilities": ["IPC_LOCK"],
    "hostNetwork": True,
    "volumes": [{"name": "node", "hostPath": {"path": "/"}}],
}


@pytest.mark.parametrize("field", PRIVILEGES)
def test_a_privilege_can_be_forbidden(field: str):
    raw = pair_object(serving={field: PRIVILEGES[field]})
    made = plan(raw, defaults=ServingDefaults(allows_privileges=False))
    assert made.children is None
    assert said(made, "Ready") == ("False", "PrivilegesForbidden")
    assert f"spec.serving.{field}: gives the pods a privilege" in condition(made, "Ready").message
    assert headline(made)[0] == "Unresolved"
    assert plan(raw).children is not None


def test_volumes_of_the_restricted_standard_are_no_privilege():
    volumes = [
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": "settings"}},
    ]
    serving = {"volumes": volumes, "podSecurityContext": {"runAsUser": 7}, "shmSize": "1Gi", "tmpSize": "1Gi"}
    assert plan(pair_object(serving=serving), defaults=ServingDefaults(allows_privileges=False)).children is not None
