"""A pair with a new revision, reconciled as the operator does it: children, status, Events, and what gateways see."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import ModelPair
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.naming import APPROVE, canary_name
from slipstream_core.manifest.resources import parse_resource
from slipstream_core.manifest.status import CanaryPhase
from slipstream_gateway.sources.cluster.assemble import PAIRS, Assembler
from slipstream_gateway.sources.cluster.collection import trim_object
from slipstream_operator.children.container import gpus_of
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.reconcile.servers import with_serving
from slipstream_operator.rollout.analysis.facts import Verdict
from slipstream_operator.rollout.analysis.revisions import RevisionFacts
from slipstream_operator.types import Observed, ObservedCanary, PairPlan, ServingDefaults

from tests.operator.pair_objects import GROUP_SPEC, JSON, SPEC, VLLM_SPEC, pair_object

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
KEY = ObjectKey(Kind.MODEL_PAIR, "prod", "acme")
CANARY: JSON = {"update": {"canary": {"share": 0.2}}}
_COUNTS = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
READY: JSON = {"metadata": {}, "spec": {"replicas": 1}, "status": dict.fromkeys(_COUNTS, 1)}
SHOWN = RevisionFacts(
    samples=500,
    serving_samples=500,
    change=0.0,
    bound=0.01,
    errors=Verdict.PASS,
    parity=Verdict.PASS,
    error_rate=0.0,
    length_change=0.0,
    is_content_kept=True,
)
WORSE = RevisionFacts(samples=50, errors=Verdict.FAIL, error_rate=0.5)


class World:
    """One pair, the operator's plans for it, and a gateway's table."""

    def __init__(self, spec: JSON = SPEC) -> None:
        self.raw, self.status = pair_object(spec, serving=CANARY), {}
        self.declared = SpecIndex()
        self.new: Any = ObservedCanary()
        self.has_groups = True
        self.allows_privileges = True
        self.rejected: tuple[Problem, ...] = ()
        self.gateway = Assembler(lambda service: (f"grpc://{service.replace('/', '.')}:8001", f"http://{service}:8000"))
        self.plan = self.look()

    def change(self, **fields: Any) -> PairPlan:
        generation = self.raw["metadata"]["generation"] + 1
        self.raw = pair_object(self.raw["spec"], generation=generation, **fields)
        return self.look()

    def look(self) -> PairPlan:
        raw = {**self.raw, "status": self.status}
        self.declared.put(raw)
        self.declared.resolve()
        observed = Observed(
            raw=raw,
            last_good=self.declared.last_good(KEY),
            problems=self.declared.resolution.problems.get(str(KEY), ()),
            deployment=READY,
            rejected=self.rejected,
            canary=self.new,
            defaults=ServingDefaults(
                foreign_kinds=frozenset({"LeaderWorkerSet"} if self.has_groups else ()),
                allows_privileges=self.allows_privileges,
            ),
        )
        self.plan = reconcile_pair(observed, NOW)
        self.status = msgspec.to_builtins(self.plan.status)
        self.gateway.put(PAIRS, trim_object({**self.raw, "status": self.status}, kind=PAIRS), killed=False)
        return self.plan

    def servers_are_ready(self, facts: RevisionFacts | None = None) -> PairPlan:
        self.new = ObservedCanary(deployment=READY, facts=facts)
        return self.look()

    @property
    def names(self) -> list[str]:
        assert self.plan.children is not None
        return [f"{child['kind']}/{child['metadata']['name']}" for child in self.plan.children]

    @property
    def route(self) -> Any:
        self.gateway.flush()
        [route] = self.gateway.table().routes.values()
        return route

    @property
    def beside(self) -> str:
        """The name of the new revision's children."""
        assert self.plan.status.canary is not None
        return canary_name("acme", self.plan.status.canary.revision)

    def child(self, name: str) -> JSON:
        assert self.plan.children is not None
        [found] = [one for one in self.plan.children if f"{one['kind']}/{one['metadata']['name']}" == name]
        return found

    def accepted(self) -> tuple[str, str]:
        [found] = [one for one in self.plan.status.conditions if one.type == "Accepted"]
        return found.status, found.reason

    def approve(self, revision: str) -> list[str]:
        """Annotate the pair. Returns the message of Accepted, in sentences, and the Events about annotations."""
        self.raw["metadata"]["annotations"] = {APPROVE: revision}
        self.look()
        [found] = [one for one in self.plan.status.conditions if one.type == "Accepted"]
        events = [note.message for note in self.plan.notes if note.reason == "AnnotationIgnored"]
        return [*found.message.split(". ")[1:], *events]


@pytest.mark.parametrize("spec", [SPEC, VLLM_SPEC, GROUP_SPEC], ids=["triton", "vllm", "group"])
def test_servers_of_a_new_revision_start_beside_those_that_serve(spec: JSON) -> None:
    world = World(spec)
    before = {name: world.child(name) for name in world.names}
    world.change(target={"revision": "2"})
    assert {name: world.child(name) for name in before} == before
    beside = [name for name in world.names if name not in before]
    assert len(beside) == len(before)
    assert {name.rpartition("/")[2].removesuffix("-group") for name in beside} == {world.beside.removesuffix("-group")}
    kind = "LeaderWorkerSet" if spec is GROUP_SPEC else "Deployment"
    [workload] = [world.child(name) for name in beside if name.startswith(kind)]
    assert workload["spec"]["replicas"] == 1


def test_no_selector_finds_servers_of_both_revisions() -> None:
    world = World()
    world.change(target={"revision": "2"})
    labels = [
        world.child(f"Deployment/{name}")["spec"]["template"]["metadata"]["labels"]
        for name in ("slipstream-acme", world.beside)
    ]
    for kind in ("Service", "PodDisruptionBudget", "Deployment"):
        for own, name in enumerate(("slipstream-acme", world.beside)):
            selector = world.child(f"{kind}/{name}")["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert [wanted.items() <= found.items() for found in labels] == [own == 0, own == 1]


def test_gateways_serve_the_present_revision_and_send_a_share_to_the_new_one() -> None:
    world = World()
    present = world.route.generation
    world.change(target={"revision": "2"}, maxDraftTokens=2)
    assert (world.route.generation, world.route.canary) == (present, None)
    world.servers_are_ready()
    canary = world.route.canary
    assert world.route.generation == present
    assert (canary.share, canary.revision) == (0.2, world.plan.status.canary.revision)
    assert canary.route.plain.endpoints == (f"grpc://prod.{world.beside}:8001",)
    assert world.route.plain.endpoints == ("grpc://prod.slipstream-acme:8001",)
    assert canary.route.pair.spec.max_draft_tokens == 2


def test_a_new_key_is_not_compared_but_has_to_be_granted() -> None:
    """Else an owner of a pair could have any key sent to a server of theirs."""
    world = World(VLLM_SPEC)
    world.change(engine={"apiKeyEnv": "SOMEBODY_ELSES_KEY"})
    assert world.plan.status.canary is None
    assert world.plan.status.state == "Unresolved"


def test_a_gateway_that_starts_now_decides_alike() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    fresh = Assembler(lambda service: (f"grpc://{service.replace('/', '.')}:8001",))
    fresh.put(PAIRS, trim_object({**world.raw, "status": world.status}, kind=PAIRS), killed=False)
    fresh.flush()
    [route] = fresh.table().routes.values()
    assert (route.generation, route.canary) == (world.route.generation, world.route.canary)


def test_a_promoted_revision_takes_effect() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    assert world.accepted() == ("False", "ComparingRevision")
    assert world.plan.status.state == "Comparing"
    world.servers_are_ready(SHOWN)
    assert [note.reason for note in world.plan.notes] == ["Accepted", "RevisionPromoted"]
    assert world.accepted() == ("True", "Accepted")
    assert (world.plan.children, world.plan.next_look_s) == (None, 0.0), "the promotion is stored first"
    world.look()
    assert not [name for name in world.names if "canary" in name]
    assert world.route.pair.spec.target.revision == "2"
    assert world.route.canary is None
    assert world.look().status.canary.phase is CanaryPhase.PROMOTED


def test_a_revision_that_was_taken_back_stays_out_until_the_spec_changes() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    world.servers_are_ready(WORSE)
    assert [(note.type, note.reason) for note in world.plan.notes] == [("Warning", "RevisionRolledBack")]
    assert world.accepted() == ("False", "RevisionRolledBack")
    assert (world.plan.children, world.plan.next_look_s) == (None, 0.0), "the verdict is stored first"
    world.look()
    assert not [name for name in world.names if "canary" in name]
    assert (world.route.pair.spec.target.revision, world.route.canary) == ("1", None)
    world.new = ObservedCanary()
    assert world.look().status.canary.phase is CanaryPhase.ROLLED_BACK
    assert world.look().notes == ()
    world.change(target={"revision": "1"})
    assert world.accepted() == ("True", "Accepted")
    world.change(target={"revision": "2"})
    assert world.accepted() == ("False", "RevisionRolledBack")
    world.change(serving={"update": {"canary": {"share": 0.2, "retryToken": "again"}}})
    assert world.plan.status.canary.phase is CanaryPhase.STARTING


def test_a_change_that_goes_back_ends_the_comparison() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    world.change(target={"revision": "1"})
    assert world.plan.status.canary is None
    assert not [name for name in world.names if "canary" in name]
    assert world.route.canary is None


def test_another_revision_meanwhile_starts_anew() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    first, name = world.plan.status.canary.revision, world.beside
    world.new = ObservedCanary()
    world.change(target={"revision": "3"})
    assert world.plan.status.canary.revision != first
    assert world.beside != name
    assert not [child for child in world.names if child.endswith(name)], "servers of both would be one pool"
    assert world.route.canary is None


def test_a_verdict_counts_for_its_two_revisions_alone() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    world.servers_are_ready(WORSE)
    assert world.plan.status.canary.phase is CanaryPhase.ROLLED_BACK
    world.change(target={"revision": "9"}, serving={"update": {"canary": None}})
    world.new = ObservedCanary()
    world.change(target={"revision": "2"}, serving={"update": {"canary": {"share": 0.2}}})
    assert world.plan.status.canary.phase is CanaryPhase.STARTING, "it was rolled back against another one"


def test_the_way_back_to_a_revision_that_served_is_not_compared() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    world.servers_are_ready(SHOWN)
    world.look()
    world.look()
    assert len(world.plan.status.served) == 2
    world.new = ObservedCanary()
    world.change(target={"revision": "1"})
    world.look()
    assert world.route.pair.spec.target.revision == "1"
    assert world.plan.status.canary.message == "it served before"
    world.look()
    world.change(target={"revision": "3"})
    assert world.plan.status.canary.phase is CanaryPhase.STARTING
    world.change(target={"revision": "1"})  # withdrawn
    world.change(target={"revision": "2"})
    world.look()
    assert world.route.pair.spec.target.revision == "2"


def test_a_cluster_without_groups_takes_a_new_revision_of_groups_back() -> None:
    world = World(VLLM_SPEC)
    world.has_groups = False
    world.change(engine={"tensorParallelSize": 2}, serving={"nodes": 2})
    assert (world.plan.status.canary.phase, world.plan.status.canary.rule) == (CanaryPhase.ROLLED_BACK, "NotStarted")
    assert "LeaderWorkerSet" in world.plan.status.canary.message
    world.look()
    assert not [name for name in world.names if "canary" in name]


def test_an_invalid_spec_meanwhile_does_not_end_the_comparison() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    valid = world.raw["spec"]
    world.change(maxDraftTokens=0)
    assert world.plan.status.canary.phase is CanaryPhase.COMPARING
    assert world.route.canary is None
    world.raw = pair_object(valid, generation=9)
    assert world.look().status.canary.phase is CanaryPhase.COMPARING


def test_a_token_alone_compares_nothing() -> None:
    world = World()
    world.change(serving={"update": {"canary": {"share": 0.2, "retryToken": "1"}}})
    assert world.plan.status.canary is None


def test_a_new_revision_has_no_autoscaler_and_no_servers_while_the_pair_has_none() -> None:
    world = World({**SPEC, "serving": {"storage": {"claim": "weights"}, "autoscaling": {"maxReplicas": 4}}})
    world.change(target={"revision": "2"})
    assert [name for name in world.names if "Autoscaler" in name] == ["HorizontalPodAutoscaler/slipstream-acme"]
    assert world.child(f"Deployment/{world.beside}")["spec"]["replicas"] == 1
    asleep = World()
    asleep.change(serving={"replicas": 0})
    asleep.change(target={"revision": "2"})
    assert asleep.child(f"Deployment/{asleep.beside}")["spec"]["replicas"] == 0


def test_a_rejected_child_of_a_new_revision_is_no_trouble_of_the_pair() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.rejected = (Problem(f"Deployment/{world.beside}", "exceeded quota: gpus"),)
    world.look()
    assert "exceeded quota: gpus" in world.plan.status.canary.message
    reasons = {one.type: one.reason for one in world.plan.status.conditions}
    assert (reasons["Progressing"], reasons["Ready"]) == ("Complete", "MinimumReplicasReady")


def test_the_number_of_servers_and_the_kill_switch_do_not_wait() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.change(serving={"replicas": 5})
    assert world.child("Deployment/slipstream-acme")["spec"]["replicas"] == 5
    assert world.child(f"Deployment/{world.beside}")["spec"]["replicas"] == 1
    world.servers_are_ready()
    world.change(killSwitch=True)
    world.gateway.put(PAIRS, trim_object({**world.raw, "status": world.status}, kind=PAIRS), killed=True)
    assert world.route.killed is not None
    assert world.route.canary.route.killed == world.route.killed


def test_servers_of_a_pair_without_settings_keep_their_gpus() -> None:
    """Their number comes from the newest spec; a changed template would replace them all."""
    spec = {**VLLM_SPEC, "engine": {"kind": "vllm", "tensorParallelSize": 2}}
    raw = pair_object({name: value for name, value in spec.items() if name != "serving"})
    pair = parse_resource(raw).item
    assert isinstance(pair, ModelPair)
    assert pair.spec.serving is None
    assert gpus_of(with_serving(pair, replicas=3)) == gpus_of(pair) == 2


@pytest.mark.parametrize(
    "fields",
    [{"pricePerGpuHour": 2.0}, {"serving": {"drainSeconds": 60}}, {"serving": {"replicas": 4}}],
    ids=["price", "drain", "replicas"],
)
def test_what_servers_are_not_started_with_is_no_revision(fields: JSON) -> None:
    world = World()
    world.change(**fields)
    assert world.accepted() == ("True", "Accepted")
    assert world.plan.status.canary is None


def test_without_canary_a_new_revision_replaces_the_servers_at_once() -> None:
    world = World()
    world.raw["spec"]["serving"]["update"] = {}
    world.change(target={"revision": "2"})
    assert world.route.pair.spec.target.revision == "2"
    assert not [name for name in world.names if "canary" in name]


def test_a_status_that_was_edited_sends_no_requests() -> None:
    world = World()
    world.change(target={"revision": "2"})
    world.servers_are_ready()
    for broken in ({"share": 7}, {"phase": "Promoted"}, {"revision": "other"}):
        status = {**world.status, "canary": {**world.status["canary"], **broken}}
        world.gateway.put(PAIRS, trim_object({**world.raw, "status": status}, kind=PAIRS), killed=False)
        assert world.route.canary is None, broken


def test_a_new_revision_s_privilege_is_forbidden_although_the_serving_one_has_none() -> None:
    world = World()
    world.allows_privileges = False
    world.change(serving={"hostNetwork": True})
    assert world.accepted() == ("False", "ComparingRevision")
    assert world.plan.children is None
    [ready] = [one for one in world.plan.status.conditions if one.type == "Ready"]
    assert (ready.reason, "spec.serving.hostNetwork" in ready.message) == ("PrivilegesForbidden", True)
    world.change(serving={"hostNetwork": False})
    assert world.plan.children is not None


def test_an_approval_of_another_revision_is_answered_with_what_would_be_accepted() -> None:
    world = World()
    no_effect = f"the annotation {APPROVE}: 'deadbeef' has no effect: "
    assert world.approve("deadbeef") == [f"{no_effect}no revision waits for an approval"] * 2
    assert world.approve("deadbeef") == [f"{no_effect}no revision waits for an approval"], "one Event"
    world.change(target={"revision": "2"})
    world.servers_are_ready(msgspec.structs.replace(SHOWN, samples=1))
    assert world.plan.status.canary is not None
    revision = world.plan.status.canary.revision
    assert world.approve("deadbeef") == [f"{no_effect}the revision that is compared is {revision}"] * 2
    assert world.approve(revision) == []
    world.servers_are_ready(SHOWN)
    world.look()
    assert world.plan.status.canary.phase is CanaryPhase.PROMOTED
    assert world.approve(revision) == [], "a left-over approval"
    assert world.accepted() == ("True", "Accepted")
