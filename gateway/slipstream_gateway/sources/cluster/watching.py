"""One kind of objects in one namespace, or in all, kept up to date: a list in pages, then a watch from there on.

As Kubernetes' own informers do it: bookmarks move the place to go on from, 410 Gone asks for a new list, and every
few minutes there is one all the same. A watch is asked to end after about a minute, and then goes on from where it
was: one that neither speaks nor ends by then has gone deaf, and is given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from slipstream_gateway.sources.cluster.access import Access, Json
from slipstream_gateway.sources.cluster.errors import (
    ClusterError,
    ClusterRefused,
    ClusterUnreachable,
    ResourceExpired,
    refused,
)

MAX_PAGES = 1000
PAGE = 100  # a policy with all that the operator keeps in its status may have 300 KB
_SHORTEST_WATCH_S = 0.5  # what ends sooner is no watch, but a proxy that cannot do them
_MOST_TOLD = 10  # different problems that are logged until all is well again
_log = logging.getLogger(__name__)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long. Pauses are drawn at random from 0.5 to 1.5 times of what is said here, so that many
    gateways do not come at once. All is well again once a watch has lasted for `steady_s`."""

    watch_s: float = 60.0
    grace_s: float = 10.0
    resync_s: float = 300.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    steady_s: float = 5.0


class Change(NamedTuple):
    """What a watch told of one object."""

    item: Json
    deleted: bool


class Sink(Protocol):
    """Who wants to know. Called in the event loop's thread; must not block for long."""

    def replaced(self, items: Sequence[Json]) -> None:
        """These are all that there are."""
        ...

    def changed(self, changes: Sequence[Change]) -> None: ...


class Resource(NamedTuple):
    """What to list and watch: the paths to try in turn (older servers lack newer versions), by a label selector."""

    paths: tuple[str, ...]
    selector: str = ""


class Reflector:
    """Keeps a sink up to date with a resource. `synced` is set with the first list, `answered` once the server has
    said anything, be it no.

    `trim` makes an object smaller before it is kept. `contact_s` is when the server was last heard, by `clock`;
    `problem` what was wrong last, empty once a watch has lasted.
    """

    def __init__(
        self,
        access: Access,
        resource: Resource,
        sink: Sink,
        *,
        trim: Callable[[Json], Json] = lambda item: item,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self.connected = False
        self.contact_s = clock()
        self.problem = ""
        self._access = access
        self._sink = sink
        self._trim = trim
        self._pace = pace or Pace()
        self._clock = clock
        self._sleep = sleep
        self._path = resource.paths[0]
        self._version = ""
        self._list_before_s = 0.0
        self._failures = 0
        self._told: set[str] = set()

    async def run(self) -> None:
        """Lists and watches until cancelled; what goes wrong is logged once, and tried again."""
        while True:
            try:
                if not self._version or self._clock() >= self._list_before_s:
                    await self._list()
                await self._watch()
            except ResourceExpired:
                if self._is_news("too old"):
                    _log.info("%s: the watch is too old to go on, a new list is taken", self._path)
                await self._failed("", goes_on=False)
            except ClusterError as exc:
                if isinstance(exc, ClusterRefused):
                    self.answered.set()
                # A broken connection alone costs nothing to go on from; whatever else it is, a list mends it.
                await self._failed(str(exc), goes_on=isinstance(exc, ClusterUnreachable) and not self._failures)
            except Exception as exc:  # the top of the task: a bug with one object must not make the gateway deaf
                if self._is_news(repr(exc)):
                    _log.exception("%s: cannot be followed; what is known stays, and it is tried again", self._path)
                await self._failed(repr(exc), goes_on=False)

    async def _failed(self, problem: str, *, goes_on: bool) -> None:
        """Pauses, longer with each failure in a row; `goes_on`: the watch goes on from where it was."""
        self.connected = False
        if not goes_on:
            self._version = ""
        if problem and self._is_news(problem):
            _log.warning("%s: %s; what is known stays, and it is tried again", self._path, problem)
        self.problem = problem or self.problem
        pause_s = min(self._pace.first_pause_s * 2**self._failures, self._pace.longest_pause_s)
        self._failures = min(self._failures + 1, 10)
        await self._sleep(_jittered(pause_s))

    def _is_news(self, problem: str) -> bool:
        """Whether `problem` is to be logged: for the first time since all was well."""
        if problem in self._told or len(self._told) >= _MOST_TOLD:
            return False
        self._told.add(problem)
        return True

    async def _list(self) -> None:
        items: list[Json] = []
        query = {"limit": str(PAGE), **self._selector()}
        for _ in range(MAX_PAGES):
            page = await self._page(query)
            items += map(self._trim, page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not (token := metadata.get("continue")):
                break
            if token == query.get("continue"):
                raise ClusterError(f"{self._path}: the list goes on with the page that it has just given")
            query["continue"] = token
        else:
            raise ClusterError(f"{self._path}: the list has more than {MAX_PAGES} pages of {PAGE}")
        self._heard()
        self._list_before_s = self._clock() + _jittered(self._pace.resync_s)
        self.synced.set()
        self.answered.set()
        self._sink.replaced(items)
        self._version = metadata.get("resourceVersion") or "0"

    async def _page(self, query: dict[str, str]) -> Json:
        """One page of a list, from the newest version of the kind that the server has."""
        for path in self.resource.paths if self.resource.paths[0] == self._path else (self._path,):
            try:
                page = await self._access.page(path, query)
            except ClusterRefused as exc:
                if exc.status == 404 and path != self.resource.paths[-1]:
                    continue
                raise
            self._path = path
            return page
        raise AssertionError("a resource has a path")

    async def _watch(self) -> None:
        left_s = self._list_before_s - self._clock()
        seconds = max(1, round(min(_jittered(self._pace.watch_s), left_s)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
            **self._selector(),
        }
        started_s = self._clock()
        silence_s = seconds + self._pace.grace_s
        async with self._access.stream(self._path, query, silence_s=silence_s) as batches:
            self._heard()
            # A watch may be asked to end sooner than that, where a new list is due.
            lasting_s = min(self._pace.steady_s, seconds / 2)
            steady = asyncio.get_running_loop().call_later(lasting_s, self._lasts)
            try:
                async for lines in batches:
                    self._heard()
                    self._take(lines)
            finally:
                steady.cancel()
        if self._clock() - started_s < _SHORTEST_WATCH_S:
            raise ClusterUnreachable(f"{self._path}: the watch was ended at once")

    def _take(self, lines: Sequence[bytes]) -> None:
        changes: list[Change] = []
        expired: ClusterRefused | None = None
        for line in filter(None, lines):
            event = _event(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                expired = refused(int(item.get("code") or 500), f"{self._path}: {item.get('message') or item}")
                break
            self._version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                changes.append(Change(self._trim(item), kind == "DELETED"))
        if changes:
            self._sink.changed(changes)
        if expired is not None:
            raise expired

    def _selector(self) -> dict[str, str]:
        return {"labelSelector": self.resource.selector} if self.resource.selector else {}

    def _heard(self) -> None:
        self.connected = True
        self.contact_s = self._clock()

    def _lasts(self) -> None:
        """The watch has lasted: nothing is wrong any more. An answer or an event alone says less: a server may give
        one, and fail, again and again."""
        self._failures = 0
        self._told.clear()
        if self.problem:
            _log.warning("%s: followed again", self._path)
            self.problem = ""


def _event(line: bytes) -> Json:
    """One line of a watch. Raises `ClusterError` where it is not an event."""
    try:
        event: Json = msgspec.json.decode(line, type=dict)
    except msgspec.DecodeError as exc:
        raise ClusterError(f"a line of a watch is not JSON: {exc}") from exc
    if not isinstance(event.get("object"), dict) or not isinstance(event.get("type"), str):
        raise ClusterError("a line of a watch is not an event")
    return event


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)
