"""Runs a plan against a gateway and writes a row for each request as it finishes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.types import Reason

from slipstream_tools.bench.client import Answer, BenchClient
from slipstream_tools.bench.options import BenchOptions
from slipstream_tools.bench.plan import BenchMode, Item, plan
from slipstream_tools.bench.requests import BenchRequest
from slipstream_tools.bench.results import MEASURE, WARMUP, Measured, Phase, ResultsFile, Row, RowKey

_PASS = 1.0 - 1e-9
_MORE_WARMUPS = 20
# Reasons of a gateway that ignored the mode the client asked for.
_CHOICE_IGNORED = frozenset(
    (
        *(Reason.CLASS_DISABLED, Reason.CLASS_ENABLED, Reason.UNKNOWN_CLASS, Reason.SHORT_OUTPUT, Reason.RARE_TOKENS),
        *(Reason.HOT_SAMPLING, Reason.LONG_CONTEXT, Reason.BREAK_EVEN, Reason.COST, Reason.HOLD_BACK),
        *(Reason.ROLLOUT, Reason.EXPLORATION, Reason.SPECULATION_PAYS),
    )
)


class BenchJob(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of `options` for one gateway. `model` is set in bodies that name none, or in all of them where the
    options name one; `draft` is the draft that the gateway serves, None for the manifest's own."""

    options: BenchOptions
    requests: Sequence[BenchRequest]
    model: str
    draft: str | None = None

    def left(self, level: int, finished: set[RowKey]) -> list[list[Item]]:
        """The groups of one concurrency level without the requests that are `finished`."""
        options = self.options
        groups = plan(self.requests, options.modes, concurrency=level, rounds=options.rounds, seed=options.seed)
        kept = ([item for item in group if self._key(item, level) not in finished] for group in groups)
        return [group for group in kept if group]

    def total(self, finished: set[RowKey]) -> int:
        """The number of measured requests still to run."""
        return sum(len(group) for level in self.options.concurrency for group in self.left(level, finished))

    def _key(self, item: Item, level: int) -> RowKey:
        return (self.draft, level, item.round, item.request.index, item.mode.name)


class Runner:
    """Runs a job, without the requests that `results` already has."""

    def __init__(self, job: BenchJob, client: BenchClient, results: ResultsFile, on_row: Callable[[Row], None]) -> None:
        self._job = job
        self._client = client
        self._results = results
        self._on_row = on_row

    async def run(self) -> None:
        """All levels, one after the other, each with its own warm-up.

        Raises:
            CommandError: the gateway ignores the mode or cannot be reached, or the results cannot be written.
        """
        for level in self._job.options.concurrency:
            groups = self._job.left(level, self._results.finished)
            if groups:
                await self._warm_up(level)
            for group in groups:
                await self._run(group, level, MEASURE)

    async def _warm_up(self, level: int) -> None:
        """Run some requests in each forced mode, at the level's concurrency and without teaching the gateway, and check
        that the gateway honours the mode."""
        job, options = self._job, self._job.options
        order = random.Random(f"{options.seed}/{level}/warm-up").sample(job.requests, len(job.requests))
        count = max(options.warmup, 1)
        for mode in [mode for mode in options.modes if mode.arm is not None] or options.modes:
            items = [Item(request=order[index % len(order)], mode=mode) for index in range(count)]
            rows = await self._run(items, level, WARMUP)
            for request in order[count : count + _MORE_WARMUPS]:  # the servers may refuse the first ones
                if any(row.e2e_s is not None for row in rows):
                    break
                rows += await self._run([Item(request=request, mode=mode)], level, WARMUP)
            _check_honoured(mode, rows)

    async def _run(self, group: Sequence[Item], level: int, phase: Phase) -> list[Row]:
        items = iter(group)
        rows: list[Row] = []

        async def client() -> None:
            for item in items:
                row = await self._one(item, level, phase)
                rows.append(row)
                self._results.append(row)
                if phase == MEASURE:
                    self._on_row(row)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(level, len(group))):
                    tasks.create_task(client())
        except* CommandError as errors:
            raise errors.exceptions[0] from None
        return rows

    async def _one(self, item: Item, level: int, phase: Phase) -> Row:
        job, body = self._job, item.request.body
        if job.options.model is not None or not body.get("model"):
            body = {**body, "model": job.model}
        answer = await self._client.run(body, item.mode.headers(learn=phase == MEASURE))
        return _row(item, body, answer, level=level, phase=phase, draft=job.draft)


def _check_honoured(mode: BenchMode, rows: Sequence[Row]) -> None:
    """Require that a mode's warm-up answers are in that mode.

    Raises:
        CommandError: the gateway decodes in another mode, or answers nothing at all.
    """
    if any(row.error is None for row in rows):
        return
    refused = next((row for row in rows if row.e2e_s is not None), None)
    if refused is None:
        raise CommandError(f"mode {mode.name}: no warm-up request was answered: {rows[0].error}")
    hint = "the pair's SpeculationPolicy must have allowClientMode: true"
    if refused.reason not in _CHOICE_IGNORED:
        hint = f"the gateway's reason is {refused.reason}"
    raise CommandError(f"the gateway ignores the requested mode, so modes cannot be compared: {refused.error}; {hint}")


def _row(item: Item, body: dict[str, Any], answer: Answer, *, level: int, phase: Phase, draft: str | None) -> Row:
    headers = answer.headers
    arm, draft_length = headers.get("x-slipstream-arm"), _whole(headers.get("x-slipstream-draft-length"))
    reason = headers.get("x-slipstream-reason")
    error = answer.error or item.mode.refusal(arm, draft_length, reason)
    scores = {} if error else {name: check(answer.text) for name, check in item.request.checks.items()}
    measured = {name: getattr(answer, name) for name in Measured.__struct_fields__}
    return Row(
        **{**measured, "error": error, "text_hash": "" if error else answer.text_hash},
        index=item.request.index,
        round=item.round,
        mode=item.mode.name,
        label=item.request.request_class,
        request=body,
        arm=arm,
        reason=reason,
        request_class=headers.get("x-slipstream-class"),
        draft_length=draft_length,
        saving_ms=_number(headers.get("x-slipstream-saving-ms")),
        checks=scores,
        passed=all(score >= _PASS for score in scores.values()) if scores else None,
        concurrency=level,
        phase=phase,
        draft=draft,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None
