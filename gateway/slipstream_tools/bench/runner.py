"""Runs a plan against a gateway and writes a row for each request as it finishes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.types import BY_SAVING, Reason

from slipstream_tools.bench.arrivals import InFlight, Load
from slipstream_tools.bench.client import Answer, BenchClient
from slipstream_tools.bench.options import BenchOptions
from slipstream_tools.bench.plan import BenchMode, Item, plan
from slipstream_tools.bench.requests import BenchRequest
from slipstream_tools.bench.results import MEASURE, WARMUP, Measured, Phase, ResultsFile, Row, RowKey

_PASS = 1.0 - 1e-9
_MORE_WARMUPS = 20
# Reasons of a gateway that ignored the mode the client asked for.
_VERIFIED_WITHIN_S, _AGAIN_S = 60.0, 0.5
_CHOICE_IGNORED = frozenset(
    (
        *(Reason.CLASS_DISABLED, Reason.CLASS_ENABLED, Reason.UNKNOWN_CLASS, Reason.SHORT_OUTPUT, Reason.RARE_TOKENS),
        *(Reason.HOT_SAMPLING, Reason.LONG_CONTEXT, Reason.BREAK_EVEN, Reason.COST, Reason.HOLD_BACK),
        *(Reason.ROLLOUT, Reason.EXPLORATION, *BY_SAVING),
    )
)


class BenchJob(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of `options` for one gateway. `model` is set in bodies that name none, or in all of them where the
    options name one; `draft` is the draft that the gateway serves, None for the manifest's own."""

    options: BenchOptions
    requests: Sequence[BenchRequest]
    model: str
    draft: str | None = None

    def left(self, level: Load, finished: set[RowKey]) -> list[list[Item]]:
        """The groups of one load without the requests that are `finished`."""
        options = self.options
        groups = plan(self.requests, options.modes, load=level, rounds=options.rounds, seed=options.seed)
        kept = ([item for item in group if self._key(item, level) not in finished] for group in groups)
        return [group for group in kept if group]

    def total(self, finished: set[RowKey]) -> int:
        """The number of measured requests still to run."""
        return sum(len(group) for level in self.options.loads for group in self.left(level, finished))

    def _key(self, item: Item, level: Load) -> RowKey:
        return (self.draft, level, item.round, item.request.index, item.mode.name)


class Runner:
    """Runs a job, without the requests that `results` already has."""

    def __init__(self, job: BenchJob, client: BenchClient, results: ResultsFile, on_row: Callable[[Row], None]) -> None:
        self._job = job
        self._client = client
        self._results = results
        self._on_row = on_row
        self._in_flight = InFlight()

    async def run(self) -> None:
        """All loads, one after the other, each with its own warm-up.

        Raises:
            CommandError: the gateway ignores the mode or cannot be reached, or the results cannot be written.
        """
        for level in self._job.options.loads:
            groups = self._job.left(level, self._results.finished)
            if groups:
                await self._warm_up(level)
            for group in groups:
                await self._run(group, level, MEASURE)

    async def _warm_up(self, level: Load) -> None:
        """Run some requests in each forced mode, at the load and without teaching the gateway, and check that the
        gateway honours the mode."""
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
            _check_honoured(mode, rows + await self._once_verified(items[0], level, rows))

    async def _once_verified(self, item: Item, level: Load, rows: Sequence[Row]) -> list[Row]:
        """Sends a request again until the gateway has checked its servers, if it has not yet: they just started."""
        more: list[Row] = []
        loop = asyncio.get_running_loop()
        latest_s = loop.time() + _VERIFIED_WITHIN_S
        while _is_unverified([*rows, *more]) and loop.time() < latest_s:
            await asyncio.sleep(_AGAIN_S)
            more += await self._run([item], level, WARMUP)
        return more

    async def _run(self, group: Sequence[Item], level: Load, phase: Phase) -> list[Row]:
        rows: list[Row] = []

        async def client(items: Iterable[Item], begin_s: float = 0.0) -> None:
            await asyncio.sleep(begin_s)
            for item in items:
                row = await self._one(item, level, phase)
                rows.append(row)
                self._results.append(row)
                if phase == MEASURE:
                    self._on_row(row)

        try:
            async with asyncio.TaskGroup() as tasks:
                if isinstance(level, int):
                    items = iter(group)
                    for _ in range(min(level, len(group))):
                        tasks.create_task(client(items))
                else:
                    for item, begin_s in zip(group, self._arrival_times(group, level), strict=True):
                        tasks.create_task(client([item], begin_s))
        except* CommandError as errors:
            raise errors.exceptions[0] from None
        return rows

    def _arrival_times(self, group: Sequence[Item], level: str) -> list[float]:
        """Seconds from now at which the items of an open loop are sent: for a request the same in every mode."""
        options, requests = self._job.options, self._job.requests
        arrivals = next(one for one in options.arrivals if one.name == level)
        times = arrivals.times(len(requests), f"{options.seed}/{group[0].round}")
        of_request = {request.index: begin_s for request, begin_s in zip(requests, times, strict=True)}
        found = [of_request.get(item.request.index, 0.0) for item in group]
        return [begin_s - min(found) for begin_s in found]

    async def _one(self, item: Item, level: Load, phase: Phase) -> Row:
        job, body, now = self._job, item.request.body, asyncio.get_running_loop().time
        if job.options.model is not None or not body.get("model"):
            body = {**body, "model": job.model}
        began_s = now()
        before = self._in_flight.change(1, began_s)
        answer = await self._client.run(body, item.mode.headers(learn=phase == MEASURE))
        ended_s = now()
        in_flight = (self._in_flight.change(-1, ended_s) - before) / max(ended_s - began_s, 1e-9)
        row = _row(item, body, answer, level=level, phase=phase, draft=job.draft)
        return row if isinstance(level, int) else msgspec.structs.replace(row, in_flight=in_flight)


def _is_unverified(rows: Sequence[Row]) -> bool:
    return all(row.error is not None for row in rows) and rows[-1].reason == Reason.ENGINE_UNVERIFIED


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


def _row(item: Item, body: dict[str, Any], answer: Answer, *, level: Load, phase: Phase, draft: str | None) -> Row:
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
