"""The kill switch and what runs already: new requests are decided plain, running ones are told to go on plainly.

A request may be on its way to a server while the first message is: sent before the switch was turned, read by the
server after that message. Hence a second message to each server a moment later, which also makes up for a first one
that failed. What was sent to a server before the switch and reaches it only after both messages, half a second later,
drafts to its end: its text is the same. A request that still waits for a connection, or for another server after a
failure, is sent plainly.

A pair is known by its key: its model may be renamed by the very change that kills it. Its requests may run on servers
that no table names any more, as of a roll-out that replaces them; hence all snapshots in use are looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from slipstream_core.errors import for_log

from slipstream_gateway.fleet.snapshot import Snapshot
from slipstream_gateway.upstreams.pool import Replica

AGAIN_AFTER_S = 0.5

_log = logging.getLogger(__name__)


def speculative_replicas(pair: str, snapshots: Collection[Snapshot]) -> tuple[Replica, ...]:
    """The servers of the speculative arm of the pair with that key in any of `snapshots`, each once."""
    pools = (
        served.speculative
        for snapshot in snapshots
        for served in snapshot.routes.values()
        if served.speculative is not None and served.route.pair.metadata.key == pair
    )
    return tuple(dict.fromkeys(replica for pool in pools for replica in pool.replicas))


class DraftStops:
    """Tells servers to stop drafting. `leave` gives a snapshot back, `current` is the one that counts now."""

    def __init__(
        self,
        *,
        leave: Callable[[Snapshot], None],
        current: Callable[[], Snapshot],
        again_after_s: float = AGAIN_AFTER_S,
    ) -> None:
        self._leave = leave
        self._current = current
        self._again_after_s = again_after_s
        self._tasks: set[asyncio.Task[None]] = set()

    def swapped(self, before: Snapshot, after: Snapshot, in_use: Collection[Snapshot]) -> None:
        """`after` has taken the place of `before`; requests run by those `in_use`, both included. Returns at once;
        whatever goes wrong is logged."""
        for pair in sorted(after.killed - before.killed):
            # Where the pair was killed already, none of its requests drafts.
            drafting = [snapshot for snapshot in in_use if pair not in snapshot.killed]
            if replicas := speculative_replicas(pair, [*drafting, after]):
                self._start(pair, replicas, (*drafting, after))

    async def aclose(self) -> None:
        """Gives up what is not said yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, pair: str, replicas: Sequence[Replica], snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            snapshot.in_use += 1  # so that their servers stay connected meanwhile
        task = asyncio.get_running_loop().create_task(self._stop_all(pair, replicas))
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            for snapshot in snapshots:
                self._leave(snapshot)

        task.add_done_callback(done)

    async def _stop_all(self, pair: str, replicas: Sequence[Replica]) -> None:
        """Each server in its own time: one that is slow to answer keeps no other one waiting."""
        _log.info("the kill switch of ModelPair %s is on: %d servers are told to stop drafting", pair, len(replicas))
        await asyncio.gather(*(self._stop(pair, replica) for replica in replicas))

    async def _stop(self, pair: str, replica: Replica) -> None:
        error = await _tell(replica)
        await asyncio.sleep(self._again_after_s)
        if pair in self._current().killed:  # else what runs now may draft
            error = await _tell(replica)
        if error is not None:
            _log.warning("%s: what runs there may draft to its end: %s", replica.name, for_log(error))


async def _tell(replica: Replica) -> Exception | None:
    """Tells `replica`; the reason where that failed."""
    try:
        await replica.stop_drafting()
    except Exception as exc:  # the top of what is done for one server; the caller logs it
        return exc
    return None
