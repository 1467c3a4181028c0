"""A small world for one policy: gateways that produce outcomes, the operator's ledger, and a clock moved by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resources import parse_resource
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.status import ClassStatus, Condition, GatewaysStatus, Phase, SpeculationPolicyStatus
from slipstream_core.manifest.versions import good_version
from slipstream_core.observation import Observation, Subject
from slipstream_core.redis.inbox import Position
from slipstream_core.types import Arm, Reason
from slipstream_operator.reconcile.policy import reconcile_policy
from slipstream_operator.reconcile.policy_facts import PolicyFacts
from slipstream_operator.rollout.analysis.checkpoint import sealed_standings
from slipstream_operator.rollout.analysis.facts import ClassFacts
from slipstream_operator.rollout.analysis.ledger import PolicyLedger
from slipstream_operator.rollout.evidence import restore, unread
from slipstream_operator.rollout.remembered import readable
from slipstream_operator.types import Note, PolicyPlan

from tests.support.manifests import manifest

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PAIR_KEY = "team/acme"
PAIR = {
    "model": "acme",
    "engine": {"kind": "slipstream"},
    "target": {"source": "/models/target"},
    "draft": {"kind": "model", "source": "/models/draft"},
}
CODE = "code/short"
LONG = "summarization/long"


def raw_policy(generation: int = 1, **spec: Any) -> dict[str, Any]:
    """A policy whose steps and numbers are small; `spec` in the manifest's words."""
    defaults: dict[str, Any] = {
        "pair": "acme",
        "analysis": {"minSamples": 50},
        "rollout": {"steps": [{"share": 0.1, "soakSeconds": 60}, {"share": 0.5, "soakSeconds": 60}]},
        "rollback": {"coolDownSeconds": 600, "staleAfterSeconds": 3600, "maxRetries": 2},
        "thresholds": {"acceptanceFloor": 0.65},
    }
    own = {"namespace": "team", "generation": generation, "uid": "s"}
    return manifest("SpeculationPolicy", "careful", {**defaults, **spec}, **own)


def policy_of(raw: Mapping[str, Any]) -> SpeculationPolicy:
    parsed = parse_resource(raw)
    assert isinstance(parsed.item, SpeculationPolicy), parsed.problems
    return parsed.item


def observation(
    name: str = CODE,
    arm: Arm = Arm.SPECULATIVE,
    *,
    time_s: float,
    acceptance: float = 0.72,
    e2e_s: float = 1.0,
    pair: str = PAIR_KEY,
    key: str = "",
    **more: Any,
) -> Observation:
    fast = arm is Arm.SPECULATIVE
    reason = {Arm.SPECULATIVE: Reason.SPECULATION_PAYS, Arm.CONTROL: Reason.ROLLOUT, Arm.PLAIN: Reason.BREAK_EVEN}[arm]
    fields: dict[str, Any] = {
        "subject": Subject(pair=pair, cold_class=name, temperature=0, key=key),
        "request_class": name,
        "arm": arm,
        "reason": reason,
        "draft_length": 5 if fast else 0,
        "pool": "p",
        "status": "ok",
        "prompt_tokens": 100,
        "output_tokens": 200,
        "drafted": 1000 if fast else 0,
        "accepted": round(1000 * acceptance) if fast else 0,
        "rejections": 0,
        "steps": 60,
        "ttft_s": e2e_s / 10,
        "e2e_s": e2e_s,
        "load": 1.0,
        "batch_draft_length": 0.0,
        "price_per_gpu_hour": 3.6,
        "time_s": time_s,
        "priced_s": e2e_s,
    }
    return Observation(**{**fields, **more})


class World:
    """One policy, its pair and its operator. `stream` is what Redis holds; `status` what the API server does."""

    def __init__(self, raw: dict[str, Any] | None = None, *, seed: int = 0) -> None:
        self.raw = raw if raw is not None else raw_policy()
        pair = manifest("ModelPair", "acme", PAIR, namespace="team", generation=1, uid="p")
        self.pair: ModelPair | None = parse_resource(pair).item  # type: ignore[assignment]
        self.now = BEGIN
        self.random = random.Random(seed)
        self.stream: list[Observation] = []
        self.status: SpeculationPolicyStatus | None = None
        self.archive = ""
        self.notes: list[Note] = []
        self.problems: tuple[Problem, ...] = ()
        self.ignored: tuple[str, ...] = ()
        self.pair_at_zero = False
        self.connected: bool | None = True
        self.pair_ready, self.pair_killed, self.paused = True, False, False
        self.gateways = GatewaysStatus(synced=2, total=2, oldest_generation=1)
        self.servers_current = True
        self.next_look_s: float | None = None
        self.ledger = self._open()

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def serve(
        self,
        count: int,
        name: str = CODE,
        *,
        seconds: float = 60.0,
        arms: tuple[Arm, ...] = (Arm.SPECULATIVE, Arm.CONTROL),
        **outcome: Any,
    ) -> None:
        """`count` requests of each of `arms` over `seconds`, the speculative ones quicker; then the time has passed."""
        begin = self.now.timestamp()
        for index in range(count):
            time_s = begin + seconds * (index + 1) / count
            noise = self.random.uniform(0.8, 1.2)
            fast = {"e2e_s": 0.5 * noise, **outcome}
            slow = {"e2e_s": self.random.uniform(0.8, 1.2)}
            for arm in arms:
                self.stream.append(observation(name, arm, time_s=time_s, **(slow if arm is Arm.CONTROL else fast)))
        self.wait(seconds)

    def serve_and_look(self, count: int, name: str = CODE, *, rounds: int = 1, **serving: Any) -> None:
        """`rounds` times: requests as `serve` makes them, and then one reconcile."""
        for _ in range(rounds):
            self.serve(count, name, **serving)
            self.look()

    def tell(self, seen: Observation) -> None:
        self.stream.append(seen)

    def look(self, *, after_s: float = 0.0, stores: bool = True) -> PolicyPlan:
        """One reconcile; its status is stored unless `stores` is False, as when the API server fails."""
        self.wait(after_s)
        if not self.followed and stores:
            self.look_before_reading()
        if self.connected and self.followed:
            self.read()
        plan = self.plan()
        if stores:
            self._store(plan)
        return plan

    def look_before_reading(self) -> None:
        """A reconcile of an operator that has just started: on the stored evidence, which may be incomplete."""
        before = self.was_read, self.opened
        self.was_read, self.opened = False, self.now
        self._store(self.plan())
        self.was_read, self.opened = before

    def _store(self, plan: PolicyPlan) -> None:
        spec = parse_resource(self.raw).item
        status = msgspec.structs.replace(
            plan.status, checkpoint=self.ledger.checkpoint(plan.status, paused=self.paused, evidence=False)
        )
        self.archive = self.ledger.checkpoint(plan.status, paused=self.paused)
        self.status = msgspec.json.decode(msgspec.json.encode(status), type=SpeculationPolicyStatus)
        known = spec.spec if isinstance(spec, SpeculationPolicy) else None
        self.ledger.follow(known, self.status, paused=self.paused)
        self.notes += plan.notes
        self.next_look_s = plan.next_look_s
        self.followed = True

    def plan(self) -> PolicyPlan:
        raw = {**self.raw, "status": {} if self.status is None else msgspec.to_builtins(self.status)}
        newest, prior = parse_resource(raw), readable(raw["status"])
        good = good_version(raw, newest)
        pair_key = (newest if good is None else good.parsed).pair_key
        return reconcile_policy(
            PolicyFacts(
                newest=newest,
                generation=raw["metadata"]["generation"],
                now=self.now,
                good=good,
                prior=prior,
                sealed=sealed_standings(prior.checkpoint, pair_key),
                problems=self.problems,
                ignored=self.ignored,
                pair=self.pair,
                pair_ready=self.pair_ready,
                pair_at_zero=self.pair_at_zero,
                pair_killed=self.pair_killed,
                servers_current=self.servers_current,
                classes=self._facts(),
                connected=self.connected,
                gateways=self.gateways,
            )
        )

    def _facts(self) -> Mapping[str, ClassFacts]:
        facts = self.ledger.facts(self.now.timestamp())
        if self.was_read:
            return facts
        return {name: unread(one, self.opened.timestamp()) for name, one in facts.items()}

    def read(self) -> None:
        self.was_read = True
        position = self.ledger.position
        for index in range(int(position.entry) if position else 0, len(self.stream)):
            self.ledger.record(self.stream[index], now_s=self.now.timestamp())
            self.ledger.passed(Position(entry=str(index + 1), numbers={}))

    def restart(self) -> None:
        """The operator ends without a word, and another one starts from what was stored."""
        self.ledger = self._open()

    def edit(self, name: str = CODE, **fields: Any) -> None:
        """Somebody edits a class in the status by hand."""
        assert self.status is not None
        classes = [msgspec.structs.replace(one, **fields) if one.name == name else one for one in self.status.classes]
        self.status = msgspec.structs.replace(self.status, classes=tuple(classes))

    def respec(self, **spec: Any) -> None:
        generation = self.raw["metadata"]["generation"] + 1
        self.raw = {**self.raw, "metadata": {**self.raw["metadata"], "generation": generation}}
        self.raw["spec"] = {**self.raw["spec"], **spec}

    def of(self, name: str = CODE) -> ClassStatus:
        assert self.status is not None
        return next(one for one in self.status.classes if one.name == name)

    def condition(self, type: str) -> Condition:
        assert self.status is not None
        return next(one for one in self.status.conditions if one.type == type)

    def reasons(self) -> list[str]:
        return [note.reason for note in self.notes]

    def _open(self) -> PolicyLedger:
        item = parse_resource(self.raw).item
        self.followed, self.was_read, self.opened = False, False, self.now
        ledger = PolicyLedger(PAIR_KEY, item.spec if isinstance(item, SpeculationPolicy) else None)
        restore(ledger, "" if self.status is None else self.status.checkpoint, self.archive)
        return ledger


def promoted(*, count: int = 100, **spec: Any) -> World:
    """A class that three rounds of `count` requests of each arm have promoted."""
    world = World(raw_policy(**spec))
    world.serve_and_look(count, rounds=3)
    assert world.of().phase is Phase.PROMOTED
    return world


def rolled_back(**spec: Any) -> World:
    """A class that one round of poor acceptance has rolled back."""
    world = World(raw_policy(**spec))
    world.serve_and_look(100)
    world.serve_and_look(150, acceptance=0.5)
    assert world.of().phase is Phase.ROLLED_BACK
    return world
