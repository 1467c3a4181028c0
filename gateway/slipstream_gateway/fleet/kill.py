"""The effect of a kill switch on requests: new ones are decided plain, and servers stop drafting for running ones.

Each server gets the command to stop drafting twice, half a second apart (`AGAIN_AFTER_S`). The second command covers
requests that were sent before the switch and that the server read after the first command. It also replaces a first
command that failed. A request that was sent before the switch and that the server reads after both commands drafts to
its end; its text is the same. A request that still waits for a connection, or for another server after a failure, is
sent plainly.

A pair is identified by its key, because the change that kills it may also rename its model. Its requests may run on
servers that are no longer in any table, for example after a roll-out that replaced them. So all snapshots in use are
searched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from slipstream_core.errors import for_log
from slipstream_core.tasks import cancel

from slipstream_gateway.fleet.snapshot import Snapshot
from slipstream_gateway.upstreams.pool import Replica

AGAIN_AFTER_S = 0.5

_log = logging.getLogger(__name__)


def speculative_replicas(pair: str, snapshots: Collection[Snapshot]) -> tuple[Replica, ...]:
    """The servers of the speculative arm of the pair with the key `pair` in any of `snapshots`, each once."""
    pools = (
        served.speculative
        for snapshot in snapshots
        for served in snapshot.served
        if served.speculative is not None and served.route.key == pair
    )
    return tuple(dict.fromkeys(replica for pool in pools for replica in pool.replicas))


class DraftStops:
    """Sends servers the command to stop drafting. `leave` releases a snapshot, `current` returns the current one."""

    def __init__(
        self,
        *,
        leave: Callable[[Snapshot], None],
        current: Callable[[], Snapshot],
    ) -> None:
        self._leave = leave
        self._current = current
        self._tasks: set[asyncio.Task[None]] = set()

    def swapped(self, before: Snapshot, after: Snapshot, in_use: Collection[Snapshot]) -> None:
        """Starts to send the command for each pair that is killed in `after` but not in `before`. `in_use` has the
        snapshots with running requests, including these two. Returns at once; errors are logged."""
        for pair in sorted(after.killed - before.killed):
            # No request drafts on a snapshot in which its pair is killed already.
            drafting = [snapshot for snapshot in in_use if pair not in snapshot.killed]
            if replicas := speculative_replicas(pair, [*drafting, after]):
                self._start(pair, replicas, (*drafting, after))

    async def aclose(self) -> None:
        """Cancels the pending commands."""
        await cancel(*self._tasks)

    def _start(self, pair: str, replicas: Sequence[Replica], snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            snapshot.in_use += 1  # keeps their connections open until the task ends
        task = asyncio.get_running_loop().create_task(self._stop_all(pair, replicas))
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            for snapshot in snapshots:
                self._leave(snapshot)

        task.add_done_callback(done)

    async def _stop_all(self, pair: str, replicas: Sequence[Replica]) -> None:
        """Sends the commands concurrently, so that a slow server does not delay the others."""
        _log.info("the kill switch of ModelPair %s is on: %d servers are told to stop drafting", pair, len(replicas))
        await asyncio.gather(*(self._stop(pair, replica) for replica in replicas))

    async def _stop(self, pair: str, replica: Replica) -> None:
        error = await _tell(replica)
        await asyncio.sleep(AGAIN_AFTER_S)
        if pair in self._current().killed:  # otherwise running requests may draft again
            error = await _tell(replica)
        if error is not None:
            _log.warning("%s: what runs there may draft to its end: %s", replica.name, for_log(error))


async def _tell(replica: Replica) -> Exception | None:
    """Sends `replica` the command to stop drafting. Returns the error if that failed."""
    try:
        await replica.stop_drafting()
    except Exception as exc:  # the top of the work for one server; the caller logs the error
        return exc
    return None
