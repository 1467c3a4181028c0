"""Objects of one kind in one namespace, or in all, kept up to date: a list in pages, then a watch from its version.

It works as Kubernetes' own informers do: bookmarks advance the version to resume from, 410 Gone causes a new list, and
a periodic list corrects whatever a watch missed. The server is asked to end a watch after about a minute, and the next
one resumes where it ended: a watch that neither sends anything nor ends by then is dead, and is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from slipstream_core.kube.client import Json, KubeClient, Listed
from slipstream_core.kube.errors import (
    KubeError,
    KubeExpired,
    KubeNotFound,
    KubeUnavailable,
    KubeUnreachable,
    error_of_status,
)

_SHORTEST_WATCH_S = 0.5  # a watch that ends sooner was ended by a proxy that does not support watches
_MAX_LOGGED = 10  # different problems that are logged before the watch recovers
_log = logging.getLogger(__name__)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Durations and intervals. Each is multiplied by a random factor of 0.5 to 1.5, so that many clients do not call at
    once. The reflector has recovered once a watch has lasted for `steady_s`."""

    watch_s: float = 60.0
    grace_s: float = 10.0
    resync_s: float = 300.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    steady_s: float = 5.0


class Change(NamedTuple):
    """One event of a watch."""

    item: Json
    deleted: bool


class Sink(Protocol):
    """Receives the objects, in the event loop's thread. It must not block for long."""

    def replaced(self, items: Sequence[Json]) -> None:
        """`items` is the complete list."""
        ...

    def changed(self, changes: Sequence[Change]) -> None: ...


class Reflector:
    """Keeps a sink up to date with the collection at `paths`: the first of them that the server has, since older
    servers lack newer API versions. `trim` makes an object smaller before it is kept. `on_failure` is called with each
    error. `resumes`: after a lost connection the watch resumes without a new list.

    `synced` is set with the first list, `answered` with the server's first answer, even an error. `contact_s` is the
    time of the server's last sign of life, by `clock`; `listed_version` is the resource version of the last list;
    `problem` is the last error, empty once the reflector has recovered.
    """

    def __init__(
        self,
        client: KubeClient,
        paths: tuple[str, ...],
        sink: Sink,
        *,
        selector: str = "",
        trim: Callable[[Json], Json] = lambda item: item,
        pace: Pace | None = None,
        resumes: bool = True,
        on_failure: Callable[[KubeError], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.paths = paths
        self.selector = selector
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()
        self.connected = False
        self.contact_s = clock()
        self.listed_version = ""
        self.problem = ""
        self._client = client
        self._sink = sink
        self._trim = trim
        self._pace = pace or Pace()
        self._resumes = resumes
        self._on_failure = on_failure
        self._clock = clock
        self._sleep = sleep
        self._path = paths[0]
        self._version = ""
        self._list_before_s = 0.0
        self._failures = 0
        self._logged: set[str] = set()

    async def run(self) -> None:
        """List and watch until cancelled. Each error is logged once and retried."""
        while True:
            try:
                if not self._version or self._clock() >= self._list_before_s:
                    await self._list()
                await self._watch()
            except KubeExpired as exc:
                if self._is_new("expired"):
                    _log.info("%s: the version to resume from has expired, a new list is taken", self._path)
                self._on_failure(exc)
                await self._failed("", resumes=False)
            except KubeError as exc:
                if exc.status:
                    self.answered.set()
                self._on_failure(exc)
                # Resuming after a lost connection costs nothing. A list corrects everything else.
                resumes = self._resumes and isinstance(exc, KubeUnreachable) and not self._failures
                await self._failed(str(exc), resumes=resumes)
            except Exception as exc:  # the top of the task: a bug with one object must not end the watch
                if self._is_new(repr(exc)):
                    _log.exception("%s: unexpected error; known objects are kept, retrying", self._path)
                await self._failed(repr(exc), resumes=False)

    async def _failed(self, problem: str, *, resumes: bool) -> None:
        """Pause, longer after each failure in a row."""
        self.connected = False
        if not resumes:
            self._version = ""
        if problem and self._is_new(problem):
            _log.warning("%s: %s; known objects are kept, retrying", self._path, problem)
        self.problem = problem or self.problem
        pause_s = min(self._pace.first_pause_s * 2**self._failures, self._pace.longest_pause_s)
        self._failures = min(self._failures + 1, 10)
        await self._sleep(_jittered(pause_s))

    def _is_new(self, problem: str) -> bool:
        """Whether `problem` was not logged since the last recovery."""
        if problem in self._logged or len(self._logged) >= _MAX_LOGGED:
            return False
        self._logged.add(problem)
        return True

    async def _list(self) -> None:
        listed = await self._first_known_list()
        self._note_contact()
        self._list_before_s = self._clock() + _jittered(self._pace.resync_s)
        self.synced.set()
        self.answered.set()
        self.listed_version = listed.version
        self._sink.replaced(listed.items)
        self._version = listed.version  # not before: a list that the sink could not take is taken again

    async def _first_known_list(self) -> Listed:
        """The list of the first path that the server knows, which the watch then uses."""
        for path in self.paths:
            try:
                listed = await self._client.list(path, selector=self.selector, trim=self._trim)
            except KubeNotFound:
                if path == self.paths[-1]:
                    raise
                continue
            self._path = path
            return listed
        raise AssertionError("a reflector has a path")

    async def _watch(self) -> None:
        left_s = self._list_before_s - self._clock()
        seconds = max(1, round(min(_jittered(self._pace.watch_s), left_s)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
            **({"labelSelector": self.selector} if self.selector else {}),
        }
        started_s = self._clock()
        async with self._client.stream(self._path, query, silence_s=seconds + self._pace.grace_s) as batches:
            self._note_contact()
            # A watch may be asked to end sooner than `steady_s` where a new list is due.
            lasting_s = min(self._pace.steady_s, seconds / 2)
            steady = asyncio.get_running_loop().call_later(lasting_s, self._recovered)
            try:
                async for lines in batches:
                    self._note_contact()
                    self._take(lines)
            finally:
                steady.cancel()
        if self._clock() - started_s < _SHORTEST_WATCH_S:
            raise KubeUnreachable(f"the watch was ended at once (WATCH {self._path})")

    def _take(self, lines: Sequence[bytes]) -> None:
        changes: list[Change] = []
        error: KubeError | None = None
        for line in filter(None, lines):
            kind, item = _event(line)
            if kind == "ERROR":
                error = error_of_status(item, int(item.get("code") or 500), call=f"WATCH {self._path}")
                break
            self._version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                changes.append(Change(self._trim(item), kind == "DELETED"))
        if changes:
            self._sink.changed(changes)
        if error is not None:
            raise error

    def _note_contact(self) -> None:
        self.connected = True
        self.contact_s = self._clock()

    def _recovered(self) -> None:
        """The watch has lasted. One answer or event proves less: a server may send it and fail, again and again."""
        self._failures = 0
        self._logged.clear()
        if self.problem:
            _log.warning("%s: the watch has recovered", self._path)
            self.problem = ""


def _event(line: bytes) -> tuple[str, Json]:
    """Type and object of one line of a watch. Raises `KubeUnavailable` where it is not an event."""
    try:
        event: Json = msgspec.json.decode(line, type=dict)
    except msgspec.DecodeError as exc:
        raise KubeUnavailable(f"a line of the watch is not JSON: {exc}") from exc
    kind, item = event.get("type"), event.get("object")
    if not isinstance(item, dict) or not isinstance(kind, str):
        raise KubeUnavailable("a line of the watch is not an event")
    return kind, item


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)
