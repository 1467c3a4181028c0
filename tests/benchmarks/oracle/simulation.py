"""Continuous batching of recorded answers over a table of costs.

A number of requests is in flight all the time: the next one arrives as one ends. Each step reads prompts, drafts,
and verifies; a request advances by the accepted draft tokens and one more, as recorded. Where the engine chooses the
draft tokens, it is the product's own code (`DraftRows`), which learns from the simulated steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from slipstream_engine.drafts.draft_allocation import DraftRows, kept
from slipstream_engine.drafts.sources import LONGEST_EVIDENCE

from tests.benchmarks.oracle.costs import Costs
from tests.benchmarks.oracle.recordings import Recorded

LONGEST_DRAFT = 8


class Choice(NamedTuple):
    """The decision on one request: a draft length, which with `adaptive` is a maximum. `counted` draft tokens are those
    that the gateway counts for each step, and `unconditional` says whether others may count on them."""

    draft_length: int
    adaptive: bool = False
    counted: int = 0
    unconditional: bool = False


class Done(NamedTuple):
    """The answer to one request. `load` and `batch_draft_length` are means over its time."""

    ttft_s: float
    e2e_s: float
    steps: int
    drafted: int
    accepted: int
    rejections: int
    load: float
    batch_draft_length: float
    ended_s: float


class Policy(Protocol):
    """Decides each request when it arrives."""

    def start(self, index: int, recorded: Recorded, load: int, neighbours: float) -> Choice:
        """`load` counts this request; `neighbours` is the mean draft length that others have unconditionally."""
        ...

    def done(self, index: int, recorded: Recorded, done: Done) -> None:
        """The request has ended."""
        ...


class Totals(NamedTuple):
    """Sums over the steps that decode: their number, requests, rows and context; and for each draft length, how
    many requests had it at least."""

    steps: int
    requests: float
    rows: float
    context: float
    at_least: list[float]


class _Running:
    __slots__ = (
        "accepted", "choice", "drafted", "index", "log_odds", "position", "recorded", "rejections", "since",
        "started_ms", "steps", "ttft_ms", "unread",
    )  # fmt: skip

    def __init__(self, index: int, recorded: Recorded, choice: Choice, since: tuple[float, float, float]) -> None:
        self.index, self.recorded, self.choice, self.since = index, recorded, choice, since
        self.position = self.steps = self.drafted = self.accepted = self.rejections = 0
        self.unread = recorded.prompt_tokens
        self.started_ms, self.ttft_ms = since[0], 0.0
        self.log_odds = [0.0, 0.0]  # of drafted and of copied tokens


class Engine:
    """One simulated server. Each request arrives when fewer than its `in_flight` are, in their order."""

    def __init__(self, costs: Costs, policy: Policy, in_flight: Sequence[int]) -> None:
        self._costs, self._policy, self._in_flight = costs, policy, in_flight
        self._rows = DraftRows()
        self._now_ms = self._request_ms = self._draft_length_ms = 0.0
        self._running: list[_Running] = []
        self._tokens_per_step = 1.0
        self._sums = [0.0, 0.0, 0.0, 0.0]
        self._at_least = [0.0] * (LONGEST_DRAFT + 1)

    def run(self, requests: Sequence[Recorded]) -> tuple[list[Done], Totals]:
        answers: list[Done | None] = [None] * len(requests)
        arrived = 0
        while arrived < len(requests) or self._running:
            while arrived < len(requests) and len(self._running) < self._in_flight[arrived]:
                self._admit(arrived, requests[arrived])
                arrived += 1
            decoding = [one for one in self._running if not one.unread]
            first, prefill_rows, spent_ms = self._prefill(bool(decoding))
            spent_ms += self._decode(decoding, prefill_rows)
            self._pass(spent_ms)
            for one in first:
                one.ttft_ms = self._now_ms - one.started_ms
            ended = [one for one in self._running if not one.unread and one.position >= len(one.recorded.matched)]
            for one in ended:
                self._running.remove(one)
                answers[one.index] = done = self._done(one)
                self._policy.done(one.index, one.recorded, done)
        steps, *sums = self._sums
        return [one for one in answers if one is not None], Totals(int(steps), *sums, self._at_least)

    def _admit(self, index: int, recorded: Recorded) -> None:
        load = len(self._running) + 1
        unconditional = sum(one.choice.counted for one in self._running if one.choice.unconditional)
        choice = self._policy.start(index, recorded, load, unconditional / load)
        since = (self._now_ms, self._request_ms, self._draft_length_ms)
        self._running.append(_Running(index, recorded, choice, since))

    def _prefill(self, stream_on: bool) -> tuple[list[_Running], int, float]:
        """The requests whose prompt is read now, the prompt tokens that share the decoding pass, and extra time."""
        costs = self._costs
        budget = int(costs.prefill_budget * (self._tokens_per_step if stream_on else 4))
        first, rows, extra_ms = [], 0, 0.0
        for one in self._running:
            if not one.unread or not budget:
                continue
            read = min(one.unread, budget)
            budget -= read
            one.unread -= read
            if one.choice.draft_length:
                extra_ms += costs.draft_prefill * read
            if costs.separate_prefill:
                extra_ms += costs.prefill_ms(read)
            else:
                rows += read
            if not one.unread:
                first.append(one)
        return first, rows, extra_ms

    def _decode(self, decoding: Sequence[_Running], prefill_rows: int) -> float:
        if not decoding:
            return self._costs.step_ms(prefill_rows, 0, 0) if prefill_rows else 0.0
        lengths, offered = self._lengths(decoding)
        rows = passes = drafting = context = accepted_sum = 0
        for one, length in zip(decoding, lengths, strict=True):
            recorded, at = one.recorded, one.position
            rows += 1 + length
            context += recorded.prompt_tokens + at
            if length and not recorded.copied[at]:
                drafting += 1
                passes = max(passes, length)
        drafting_ms = self._costs.drafting_ms(passes, drafting)
        step_ms = self._costs.step_ms(rows + prefill_rows, len(decoding), context)
        for one, length in zip(decoding, lengths, strict=True):
            accepted_sum += self._advance(one, length)
        if offered:
            self._rows.note_step(len(decoding), rows + prefill_rows, step_ms / 1e3, len(decoding) + offered)
            self._rows.note_drafting(passes, drafting_ms / 1e3, LONGEST_DRAFT)
        self._tokens_per_step += 0.05 * (1 + accepted_sum / len(decoding) - self._tokens_per_step)
        for at, value in enumerate((1, len(decoding), rows, context)):
            self._sums[at] += value
        return step_ms + drafting_ms

    def _lengths(self, decoding: Sequence[_Running]) -> tuple[list[int], int]:
        """The draft length of each request in this step, and the draft tokens that the engine could choose from."""
        lengths = [one.choice.draft_length for one in decoding]
        if not any(one.choice.adaptive and one.choice.draft_length for one in decoding):
            for length in lengths:
                for shorter in range(length + 1):
                    self._at_least[shorter] += 1
            return lengths, 0
        offers = [_evidence(one) for one in decoding]
        copied = [bool(one.recorded.copied[one.position]) for one in decoding]
        own = [one.log_odds[copy] for one, copy in zip(decoding, copied, strict=True)]
        fixed = [not one.choice.adaptive for one in decoding]
        return self._rows.lengths(offers, own, fixed, copied), sum(map(len, offers))

    def _advance(self, one: _Running, length: int) -> int:
        matched = one.recorded.matched[one.position]
        accepted = min(matched, length)
        if one.choice.adaptive:
            evidence, copied = _evidence(one), bool(one.recorded.copied[one.position])
            own = one.log_odds[copied]
            own = self._rows.chances.learn(evidence[:length], accepted, own) if length else kept(own)
            one.log_odds[copied] = own
        one.position += 1 + accepted
        one.steps += 1
        one.drafted += length
        one.accepted += accepted
        one.rejections += accepted < length
        return accepted

    def _pass(self, spent_ms: float) -> None:
        self._now_ms += spent_ms
        self._request_ms += spent_ms * len(self._running)
        self._draft_length_ms += spent_ms * sum(one.choice.counted for one in self._running)

    def _done(self, one: _Running) -> Done:
        elapsed_ms, request_ms = self._now_ms - one.since[0], self._request_ms - one.since[1]
        return Done(
            one.ttft_ms / 1e3,
            elapsed_ms / 1e3,
            one.steps,
            one.drafted,
            one.accepted,
            one.rejections,
            max(request_ms / elapsed_ms, 1.0),
            (self._draft_length_ms - one.since[2]) / request_ms,
            self._now_ms / 1e3,
        )


def _evidence(one: _Running) -> list[int]:
    """As the engine's draft sources give it: the length of the match so far, or the position above those."""
    length, copied = one.choice.draft_length, one.recorded.copied[one.position]
    if copied:
        return [min(copied + position, LONGEST_EVIDENCE) for position in range(length)]
    return list(range(LONGEST_EVIDENCE + 1, LONGEST_EVIDENCE + 1 + length))
