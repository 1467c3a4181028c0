"""The sequence of checks of one server while it serves a speculative arm."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slipstream_core.errors import Overloaded, SlipstreamError, UpstreamError
from slipstream_core.manifest.table import Backend
from slipstream_core.settings import ConformanceSettings
from slipstream_core.types import Reason

from slipstream_gateway.admission import Admission
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.lossless.check import AT_ONCE, Check, Side
from slipstream_gateway.lossless.findings import Finding, Result
from slipstream_gateway.lossless.schedule import CheckTurns, Pilot, SpareServers
from slipstream_gateway.lossless.withhold import Watch
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.pool import Replica

_LOOK_S = 0.5
_PROBE_TIMEOUT_S = 5.0
_SEED_BITS = 31
_MOST_EXTENDED = 8  # a check may take up to so many times the setting
_log = logging.getLogger(__name__)

Found = Callable[[Sequence[str], Sequence[Finding]], None]
"""Called with the pairs of a server and the findings of its check."""


class Duty(NamedTuple):
    """The settings of one server's checks. `pairs` are the keys of the pairs whose speculative arm it serves; the check
    uses the sides of the first, `served`. `draft_length` is the maximum over the pairs that may speculate; it is 0 if
    none may, for the reason `off`."""

    pairs: tuple[str, ...]
    served: ServedRoute
    speculative: Backend
    draft_length: int
    off: str | None

    @property
    def sides(self) -> tuple[Backend, Backend]:
        """The identity of a result: if it changes, the server is checked again."""
        return self.speculative, self.served.route.plain


class ServerChecks:
    """Checks `replica` from `start` to `aclose`, and probes it between checks: a server that restarts is unreachable
    for a while, and counts as a new one afterwards.

    No check runs while none of its pairs may speculate, or while the server cannot draft: a draft that crashes an
    engine must not do so again after the kill switch was turned on. A running check is then cancelled.
    """

    def __init__(
        self,
        replica: Replica,
        duty: Duty,
        *,
        fleet: Fleet,
        admission: Admission,
        settings: ConformanceSettings,
        deaths: QueriesOfDeath,
        pilot: Pilot,
        found: Found,
    ) -> None:
        self.watch = Watch(duty.pairs, replica, duty.speculative)
        self.duty = duty
        self._replica = replica
        self._fleet = fleet
        self._settings = settings
        self._deaths = deaths
        self._pilot = pilot
        self._found = found
        self._turns = CheckTurns(settings.every_s)
        self._spare = SpareServers(admission)
        self._probe_at_s = 0.0
        self._timeout_s = settings.timeout_s
        self._task: asyncio.Task[None] | None = None

    @property
    def waits_for(self) -> str | None:
        """The reason why no check is made: the manifest or the server must change first. None: checks are made on
        schedule."""
        drafting = self._replica.upstream.drafting
        if drafting.withheld is not None and drafting.withheld.reason is Reason.ENGINE_CANNOT:
            return drafting.withheld.detail
        return self.duty.off or ("the server's own limit prevents drafts" if drafting.limit == 0 else None)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> asyncio.Task[None] | None:
        """Cancels the running check and returns its task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def follow(self, duty: Duty) -> asyncio.Task[None] | None:
        """Continues with a later snapshot with the same sides. Returns the cancelled task if no request may speculate
        any more."""
        ends = duty.off is not None and self.duty.off is None
        self.duty = duty
        self.watch.pairs = duty.pairs
        if not ends or self._task is None:
            return None
        cancelled = self.stop()
        self.start()
        return cancelled

    async def _work(self) -> None:
        while asyncio.current_task() is self._task:  # a cancellation is lost if a probe fails at the same time
            try:
                if await self._is_due():
                    await self._check()
            except Exception:  # top of the task: an unexpected error must not end the checks of a server
                _log.exception("%s: the check of the engine failed", self._replica.name)
                self._turns.unanswered(_now_s())
            await asyncio.sleep(_LOOK_S)

    async def _is_due(self) -> bool:
        """Polls the server once: whether to check it now."""
        if _now_s() >= self._probe_at_s:
            await _probe(self._replica)
            self._probe_at_s = _now_s() + self._settings.probe_s
        if self.watch.is_another or self.watch.exceeds(self._draft_length(limited=True)):
            self.watch.renew()
            self._turns.renew(_now_s())
        spare = self._spare.look([self._replica])
        can_draft = self._replica.upstream.drafting.withheld is None and self.waits_for is None
        now_s = _now_s()
        return can_draft and self._turns.is_due(now_s, spare=bool(spare)) and self._pilot.admits(now_s)

    def _draft_length(self, *, limited: bool = False) -> int:
        """The maximum draft length of the pairs on this server; `limited`: capped at the server's own maximum."""
        drafting = self._replica.upstream.drafting
        bounds = (drafting.longest, drafting.limit if limited else None)
        return min([self.duty.draft_length, *(bound for bound in bounds if bound is not None)])

    async def _check(self) -> None:
        draft_length = self._draft_length(limited=True)
        findings: list[Finding] | None = None
        self._pilot.begins(_now_s() + self._timeout_s)
        try:
            findings = await self._answers()
        finally:
            self._pilot.ended(found=any(one.result is not Result.NO_DATA for one in findings or ()))
        if findings is None or self.watch.is_another:
            self._turns.unanswered(_now_s())
            self._probe_at_s = 0.0  # it may have been removed
            return
        self._found(self.watch.pairs, findings)
        self.watch.checked_s = time.time()
        took_away = self.watch.apply(findings, draft_length=draft_length)
        if self.watch.is_unverified:
            self._turns.inconclusive(_now_s())
        else:
            self._turns.concluded(_now_s(), random.random())
        if took_away:
            with contextlib.suppress(SlipstreamError):  # running answers continue plainly, if the server supports that
                await self._replica.stop_drafting()

    async def _answers(self) -> list[Finding] | None:
        """The findings of a check; None if a server did not respond, or no plain server is up."""
        snapshot = self._fleet.enter()  # keeps the servers' connections open meanwhile
        try:
            plain = self._plain()
            if plain is None:
                return None
            return await self._run(plain)
        except (UpstreamError, Overloaded) as exc:
            _log.info("%s: no response to the check of the engine: %s", self._replica.name, type(exc).__name__)
            return None
        except TimeoutError:  # a slow server would never be checked if each check had the same time
            took_s, longest_s = self._timeout_s, _MOST_EXTENDED * self._settings.timeout_s
            self._timeout_s = min(2 * took_s, longest_s)
            text = "%s: the check of the engine took longer than %g s; the next check may take %g s"
            _log.warning(text, self._replica.name, took_s, self._timeout_s)
            return None
        finally:
            self._fleet.leave(snapshot)

    async def _run(self, plain: Replica) -> list[Finding]:
        """Runs a check. A check that could not wait for a spare server sends one probe at a time, and has more time for
        that."""
        at_once = 1 if self._turns.is_late(_now_s()) else AT_ONCE
        speculative, plain_backend = self.duty.sides
        check = Check(
            pair=self.duty.pairs[0],
            deaths=self._deaths,
            speculative=Side(self._replica, speculative, self._draft_length()),
            plain=Side(plain, plain_backend, 0),
            seed=random.getrandbits(_SEED_BITS),
            at_once=at_once,
        )
        async with asyncio.timeout(self._timeout_s * AT_ONCE / at_once):
            return await check.run()

    def _plain(self) -> Replica | None:
        pool = self.duty.served.plain
        return self._replica if self._replica in pool.replicas else pool.least_busy()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _probe(replica: Replica) -> None:
    """A server that does not respond to a probe is marked as lost, as after a request."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            await replica.upstream.probe()
    except (SlipstreamError, TimeoutError):
        replica.lost()
