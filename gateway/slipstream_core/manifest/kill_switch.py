"""How a person turns the kill switch of a pair, wherever the pairs are declared, and the switches of a manifest file.

The console shows and turns a `KillSwitch`; each source of the configuration brings its own. The switches of a manifest
file (`Kills`) are turned by an admin, applied by every worker and kept over restarts. They are stored beside the
manifest, which belongs to its owner and is never written by Slipstream. A pair may speculate only where neither the
manifest nor this file forbids it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from slipstream_core.errors import ManifestError, SlipstreamError
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.manifest.status import Time
from slipstream_core.manifest.table import Route, RoutingTable

LAND_WITHIN_S = 5.0
MAX_EVENTS = 50
_MAX_BYTES = 1024 * 1024
_REMEDY = "Repair or remove it. Without it, only the kill switches in the manifest are on."

Who = Annotated[str, Meta(min_length=1, max_length=100)]
Why = Annotated[str, Meta(max_length=500)]


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A kill switch that is on: since when, by whom, and why."""

    at: Time
    by: Who
    reason: Why = ""


class KillEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a kill switch. `landed_s` is the time from the acknowledged write until `workers` workers had applied
    it; None if not all of them have confirmed it. `note` is free text."""

    at: Time
    pair: str
    on: bool
    by: Who
    reason: Why = ""
    landed_s: float | None = None
    workers: int = 0
    note: str = ""


class Kills(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. `pairs` are the kills by the pair's key; `events` are the latest turns, newest first."""

    pairs: dict[str, Kill] = {}
    events: tuple[KillEvent, ...] = ()


class NotSwitchable(SlipstreamError):
    """This kill switch cannot be turned from here; the message says how it can."""


class KillSwitch(Protocol):
    """The kill switches of all pairs."""

    @property
    def kills(self) -> Kills:
        """The switches that were turned here, with their history."""
        ...

    def is_on(self, route: Route) -> bool:
        """Whether the switch that `turn` turns is on for the pair of `route`."""
        ...

    def command(self, route: Route) -> str:
        """The command to run instead, for a pair whose switch cannot be turned from here; empty where it can."""
        ...

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        """Turn the switch, and wait until all workers apply it. Raises `NotSwitchable`."""
        ...


def command_for(route: Route) -> str:
    """The command that stops the pair of `route`; where it is stopped, `unkill` in place of `kill` allows it again."""
    pair, policy = route.pair, route.policy
    if policy is not None and policy.spec.kill_switch and not pair.spec.kill_switch:
        return f"slipstream kill speculationpolicy/{policy.metadata.name}{within(policy.metadata.namespace)}"
    return f"slipstream kill modelpair/{pair.metadata.name}{within(pair.metadata.namespace)}"


def within(namespace: str | None) -> str:
    """The command's option for `namespace`."""
    return f" -n {namespace}" if namespace else ""


def with_event(kills: Kills, event: KillEvent) -> Kills:
    """`kills` with `event` as the latest."""
    return msgspec.structs.replace(kills, events=(event, *kills.events)[:MAX_EVENTS])


def now() -> str:
    """The time as Kubernetes writes it, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def killed_in(table: RoutingTable, kills: Mapping[str, Kill]) -> RoutingTable:
    """`table` with the pairs in `kills` killed. The routes of other pairs stay the same objects."""
    if not kills:
        return table
    routes = dict(table.routes)
    for model, route in table.routes.items():
        kill = kills.get(route.pair.metadata.key)
        if kill is not None and route.killed is None:
            why = f"an admin turned the kill switch on: {kill.by}, {kill.at}"
            routes[model] = msgspec.structs.replace(route, killed=f"{why}: {kill.reason}" if kill.reason else why)
    return msgspec.structs.replace(table, routes=routes)


def kills_beside(manifest: Path, state_folder: Path | None) -> Path:
    """The path of the kill-switch file of a manifest."""
    return (state_folder or manifest.parent) / f"{manifest.name}.kills.json"


class KillFile:
    """The file at `path`; a missing file means no kills. `kills` is the result of the last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kills = Kills()
        self._stamp: tuple[int, int, int] | None = None
        self._files, self._changes = FileThread(), FileThread()

    def refresh(self) -> bool:
        """Reads the file if it has changed, and returns whether it had.

        Raises `ManifestError` once per bad file, and on every failed read; the previous kills stay in force.
        """
        with self._in_time():
            return self._files.run(self._refresh)

    async def arefresh(self) -> bool:
        """As `refresh`, without blocking the event loop."""
        with self._in_time():
            return await self._files.arun(self._refresh)

    @contextlib.contextmanager
    def _in_time(self, problem: str = "cannot be read") -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ManifestError(f"{problem}: {error.strerror}", field=str(self.path)) from error

    def _refresh(self) -> bool:
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return False
        data = _bytes(self.path)  # if that fails, the next poll reads it again
        self._stamp = stamp
        self.kills = _decode(data, self.path)
        return True

    async def achange(self, edit: Callable[[Kills], Kills]) -> Kills:
        """As `change`, without blocking the event loop. A change that times out may still be written later."""
        with self._in_time("the kill switch cannot be stored"):
            return await self._changes.arun(partial(self.change, edit))

    def change(self, edit: Callable[[Kills], Kills]) -> Kills:
        """Replaces the file by the result of `edit`, durably and by one process at a time. Blocks meanwhile. Raises
        `ManifestError`."""
        try:
            with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                kills = edit(_decode(_bytes(self.path), self.path))
                _write(self.path, msgspec.json.format(msgspec.json.encode(kills)))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ManifestError(f"the kill switch cannot be stored: {reason}", field=str(self.path)) from error
        return kills


def _bytes(path: Path) -> bytes | None:
    """The file's content, None if there is no file."""
    try:
        return read_regular(path, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror or error}. {_REMEDY}", field=str(path)) from error


def _decode(data: bytes | None, path: Path) -> Kills:
    if data is None:
        return Kills()
    try:
        return msgspec.json.decode(data, type=Kills)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"is not a kill-switch file: {error}. {_REMEDY}", field=str(path)) from error


def _write(path: Path, data: bytes) -> None:
    """Writes the file atomically, and durably against a crash of the machine."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(data + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """The file is only ever replaced, so a new version has another inode or another time."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError:  # the read reports the problem
        return -1, -1, -1
    return status.st_ino, status.st_mtime_ns, status.st_size
