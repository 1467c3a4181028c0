"""The ledger of one policy: it turns outcomes into facts, and counts each outcome once, across restarts.

It has no I/O and no clock: the caller passes the time. It is not thread-safe: a ledger belongs to one event loop.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping

import msgspec
from slipstream_core.key_groups import GROUPS, group_of
from slipstream_core.manifest.rollout import DEFAULT_ERROR_RATE, Analysis, Thresholds, effective
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec, rule_of
from slipstream_core.manifest.status import Phase, SpeculationPolicyStatus
from slipstream_core.observation import Observation
from slipstream_core.redis.inbox import Position

from slipstream_operator.rollout.analysis.agreement import agreed
from slipstream_operator.rollout.analysis.checkpoint import State, read_checkpoint, write_checkpoint
from slipstream_operator.rollout.analysis.facts import SHOWN, ClassFacts, ClassMemory
from slipstream_operator.rollout.analysis.metrics import Terms, rules_of, stricter
from slipstream_operator.rollout.analysis.outcomes import CLASSES, kind_of
from slipstream_operator.rollout.analysis.record import ClassRecord


class PolicyLedger:
    """The evidence for a policy's decisions. Its size is bounded: classes come from a closed set of 33.

    `pair` is the key of the pair; outcomes of other pairs are ignored. `spec` is None while it cannot be read: then
    only errors are guarded. Outcomes before `begun_s` (the policy's creation; seconds since 1970) are ignored.
    """

    def __init__(self, pair: str, spec: SpeculationPolicySpec | None, *, begun_s: float = -math.inf) -> None:
        self._pair = pair
        self._spec = spec
        self._begun_s = begun_s
        self._state = State(pair=pair)
        self._terms: dict[str, Terms] = {}
        self._looked_s = -math.inf

    @property
    def pair(self) -> str:
        return self._pair

    @property
    def position(self) -> Position | None:
        """The position up to which the pair's outcomes are recorded. Reading has to continue there after `restore`."""
        return self._state.position

    def restore(self, checkpoint: str) -> None:
        """Replace the content with that of `checkpoint`. A checkpoint of another pair is ignored.

        Raises:
            CheckpointError: it cannot be read; the ledger stays as it was.
        """
        state = read_checkpoint(checkpoint)
        if state.pair != self._pair:
            return
        state.records, *state.without = (
            {name: record for name, record in records.items() if name in CLASSES}
            for records in (state.records, *state.without)
        )
        self._state = state
        self._terms.clear()
        self._stand()

    def record(self, seen: Observation, *, now_s: float = math.inf) -> None:
        """Record an outcome, within microseconds. Outcomes of other pairs and impossible outcomes are ignored and raise
        nothing.

        `now_s` is the operator's wall clock. An outcome with a later time, from a gateway whose clock is ahead, counts
        as one of now.
        """
        kind = kind_of(seen)
        if kind is None or seen.subject.pair != self._pair or seen.canary:
            return  # an answer of a new revision is no evidence for the serving one
        time_s = min(seen.time_s, now_s)
        if time_s < self._begun_s:
            return
        name = seen.request_class
        terms = self._terms.get(name) or self._make_terms(name)
        from_s = math.inf if self._state.paused else self._state.resumed_s
        for records in self._of(seen.subject.key):
            self._record(name, records).add(seen, kind, terms, time_s, from_s=from_s)

    def passed(self, position: Position) -> None:
        """Set the position up to which all outcomes were recorded."""
        self._state.position = position

    def follow(
        self, spec: SpeculationPolicySpec | None, status: SpeculationPolicyStatus, *, paused: bool = False
    ) -> None:
        """Set the status in force and its spec (None: the previous spec). The evidence of an earlier step, attempt or
        spec is dropped.

        While `paused`, outcomes only prove that their class has traffic, since the servers do not match `spec` yet.
        After the pause, an outcome counts if its request began after the last call of `facts` within the pause.
        """
        if spec is not None:
            self._spec = spec
        self._state.resumed_s = self._resumed_s(paused)
        self._state.paused = paused
        self._terms.clear()
        self._state.standings = standings_of(status)
        self._stand()

    def facts(self, now_s: float) -> Mapping[str, ClassFacts]:
        """The facts of every class with outcomes, by name. `now_s` is the wall clock."""
        self._looked_s = now_s
        return {name: self._facts(name, now_s) for name in sorted(self._state.records)}

    def shows_loss(self) -> bool:
        """Whether a class that is judged is slower than its control. It is much quicker than `facts`."""
        return any(
            record.memory is not None
            and record.memory.phase in (Phase.PROGRESSING, Phase.PROMOTED)
            and record.times.found_loss(terms.alarm_at, margin=terms.margin) is not None
            for name, record in self._state.records.items()
            if (terms := self._terms.get(name)) is not None
        )

    def checkpoint(self, status: SpeculationPolicyStatus, *, paused: bool = False, evidence: bool = True) -> str:
        """The text for `restore`, with the states of the classes in `status`. `follow` must be called with the same
        `status` and `paused`. Without `evidence` it is short, and is stored in that status, so that both are written at
        once or not at all: outcomes are then read from the store again."""
        state = self._state if evidence else State(pair=self._pair)
        after = {"standings": standings_of(status), "paused": paused, "resumed_s": self._resumed_s(paused)}
        return write_checkpoint(msgspec.structs.replace(state, **after))

    def _resumed_s(self, paused: bool) -> float:
        return self._looked_s if self._state.paused and not paused else self._state.resumed_s

    def _of(self, key: str) -> Iterator[dict[str, ClassRecord]]:
        """The records that outcomes of `key` belong to: those of all keys, and those without another group. The first
        key of a group begins it: the records without the group are those of all keys so far."""
        state = self._state
        if len(state.keys) < GROUPS and key not in state.keys:
            state.keys.append(key)
            state.without.append(copy.deepcopy(state.records))
        group = group_of(key, state.keys)
        yield state.records
        yield from (records for index, records in enumerate(state.without) if index != group)

    def _facts(self, name: str, now_s: float) -> ClassFacts:
        terms, state = self._terms.get(name) or self._make_terms(name), self._state
        whole = state.records[name].facts(terms, now_s)
        if len(state.keys) < 2:
            return whole
        return agreed(whole, [records[name].facts(terms, now_s) for records in state.without if name in records])

    def _stand(self) -> None:
        """Set the states of the classes in all records."""
        for name, memory in self._state.standings.items():
            if name in CLASSES:
                for records in (self._state.records, *self._state.without):
                    self._record(name, records).stand(memory)

    def _record(self, name: str, records: dict[str, ClassRecord]) -> ClassRecord:
        record = records.get(name)
        if record is None:
            analysis = self._spec.analysis if self._spec is not None else Analysis()
            record = records[name] = ClassRecord(window_seconds=analysis.window_seconds)
        return record

    def _make_terms(self, name: str) -> Terms:
        memory = self._record(name, self._state.records).memory
        share = memory.share if memory is not None else 1.0
        retried = memory is not None and memory.retries > 0 and memory.phase is not Phase.PROMOTED
        terms = self._terms[name] = terms_of(self._spec, name, retried=retried, share=share)
        for records in (self._state.records, *self._state.without):
            if name in records:
                records[name].window_seconds = terms.window_seconds
        return terms


def terms_of(spec: SpeculationPolicySpec | None, name: str, *, retried: bool, share: float = 1.0) -> Terms:
    """The limits of the class `name`. They are stricter if it was `retried`, until the retry is promoted. `share` is
    the share of the class's requests that may speculate."""
    if spec is None:
        return _terms(Thresholds(error_rate=DEFAULT_ERROR_RATE), Analysis(), margin=0.0, controlled=False)
    rule = rule_of(spec, name)
    thresholds = effective(spec.thresholds, rule.thresholds if rule is not None else None)
    if rule is not None and rule.mode == "speculative":
        thresholds = Thresholds(error_rate=thresholds.error_rate)
    if retried:
        thresholds = stricter(thresholds, spec.rollback.reenable_margin)
    return _terms(thresholds, spec.analysis, margin=spec.margin, controlled=spec.hold_back_share > 0.0 or share < 1.0)


def standings_of(status: SpeculationPolicyStatus) -> dict[str, ClassMemory]:
    """The states of the classes in `status`."""
    return {
        one.name: ClassMemory(
            **{name: getattr(one, name) for name in SHOWN},
            spec_hash=status.spec_hash,
            own_hash=one.spec_hash,
            retry_token=status.retry_token,
        )
        for one in status.classes
    }


def _terms(thresholds: Thresholds, analysis: Analysis, *, margin: float, controlled: bool) -> Terms:
    rate = thresholds.error_rate
    return Terms(
        rules=rules_of(thresholds, min_samples=analysis.min_samples),
        error_rate=DEFAULT_ERROR_RATE if rate is None else rate,
        alarm_at=math.log(analysis.false_alarm_requests),
        window_seconds=analysis.window_seconds,
        min_samples=analysis.min_samples,
        margin=margin,
        confidence=analysis.confidence,
        controlled=controlled,
        ttft_increase=thresholds.ttft_increase,
    )
