"""The kill switch and what runs already: new requests are decided plain, running ones are told to go on plainly.

A request may be on its way to a server while the first message is: sent before the switch was turned, read by the
server after that message. Hence a second message a moment later, which also makes up for a first one that failed.
What was sent to a server before the switch and reaches it only after both messages, half a second later, drafts to its
end: its text is the same. A request that still waits for a connection, or for another server after a failure, is sent
plainly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from slipstream_gateway.manifest.table import Route
from slipstream_gateway.upstreams.pool import Replica

if TYPE_CHECKING:
    from slipstream_gateway.director.fleet import Snapshot

AGAIN_AFTER_S = 0.5

_log = logging.getLogger(__name__)


def is_killed(route: Route) -> bool:
    """Whether a kill switch is on for `route`: its pair's, its policy's, or one of an object that is broken."""
    policy = route.policy
    return bool(
        route.killed is not None or route.pair.spec.kill_switch or (policy is not None and policy.spec.kill_switch)
    )


def newly_killed(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """The models whose kill switch was turned on between two snapshots."""
    for model, served in after.routes.items():
        earlier = before.routes.get(model)
        if earlier is None or earlier is served or is_killed(earlier.route) or not is_killed(served.route):
            continue
        yield model


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

    def swapped(self, before: Snapshot, after: Snapshot) -> None:
        """`after` has taken the place of `before`. Returns at once; whatever goes wrong is logged."""
        for model in newly_killed(before, after):
            pools = (snapshot.routes[model].speculative for snapshot in (before, after))
            replicas = tuple(dict.fromkeys(replica for pool in pools if pool is not None for replica in pool.replicas))
            if replicas:
                self._start(model, replicas, (before, after))

    async def aclose(self) -> None:
        """Gives up what is not said yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, model: str, replicas: Sequence[Replica], snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            snapshot.in_use += 1  # so that their servers stay connected meanwhile
        task = asyncio.get_running_loop().create_task(self._stop(model, replicas))
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            for snapshot in snapshots:
                self._leave(snapshot)

        task.add_done_callback(done)

    async def _stop(self, model: str, replicas: Sequence[Replica]) -> None:
        _log.info("the kill switch of the model '%s' is on: %d servers are told to stop drafting", model, len(replicas))
        failed = await _tell(replicas)
        await asyncio.sleep(self._again_after_s)
        served = self._current().routes.get(model)
        if served is not None and is_killed(served.route):  # else what runs now may draft
            failed = await _tell(replicas)
        for replica, error in failed:
            detail = getattr(error, "detail", "")
            _log.warning("%s: what runs there may draft to its end: %s %s", replica.name, _said(error), detail)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _tell(replicas: Sequence[Replica]) -> list[tuple[Replica, BaseException]]:
    """Tells all `replicas` at once; those that could not be told, each with the reason."""
    results = await asyncio.gather(*(replica.stop_drafting() for replica in replicas), return_exceptions=True)
    return [(replica, result) for replica, result in zip(replicas, results, strict=True) if result is not None]
