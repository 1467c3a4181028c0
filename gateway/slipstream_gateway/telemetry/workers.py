"""Queries and notices between workers: each worker listens on its own Unix socket in a shared folder, so that any of
them can show the metrics of all, and turn the kill switch of all.

Expositions are merged series by series: equal ones are added, or their mean or maximum is taken. The multiprocess mode
of prometheus_client is no alternative: it has neither exemplars nor instruments that are read at a scrape.

A question or a notice is one line. The answer ends when the socket is closed; that to a notice is empty. The values of
a dead worker are lost, so counters fall by its share; Prometheus' `rate` takes that for a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

ANSWER_TIMEOUT_S = 2.0
# Values that are no counts. The mean of differences over the workers has an interval at most as wide as the mean
# interval; the mean of 0 and 1 is a share of the workers.
MEANS: tuple[str, ...] = (
    "slipstream_effect_",
    "slipstream_store_connected",
    "slipstream_config_",
    "slipstream_access_keys",
    "slipstream_limits_shared",
    "slipstream_engine_conformance",
)
# Values of which the worst worker counts.
MAXIMA: tuple[str, ...] = (
    "slipstream_admission_pressure",
    "slipstream_admission_latency_ratio",
    "slipstream_parity_age_seconds",
    "slipstream_parity_evidence",
)

_EOF = "# EOF"
_SAMPLE = re.compile(r'([^\s{]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?) (\S+)(?: (# \{.*))?')
_log = logging.getLogger(__name__)

Answer = Callable[[], bytes]
"""Produces a worker's answer. Called on its event loop: must be quick and must not raise."""

Receive = Callable[[bytes], None]
"""Handles a notice. Called on the worker's event loop: must be quick, and may raise only `ValueError`."""


class PeerQuery(StrEnum):
    """`METRICS` is answered in Prometheus' text format, `OPENMETRICS` with exemplars, `SNAPSHOT` as one JSON document
    for the console, `UNSTORED_KILLS` as a JSON list of turns of kill switches."""

    METRICS = "metrics"
    OPENMETRICS = "openmetrics"
    SNAPSHOT = "snapshot"
    UNSTORED_KILLS = "unstored-kills"


class PeerNotice(StrEnum):
    """`KILL` has a turn of a kill switch as JSON, `BREAK` a request that broke a server."""

    KILL = "kill"
    BREAK = "break"


class WorkerPeers:
    """This worker's socket, and queries to those of the others. Use as an asynchronous context."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._answers: dict[PeerQuery, Answer] = {}
        self._receivers: dict[PeerNotice, Receive] = {}
        self._path = folder / f"{os.getpid()}.sock" if folder is not None else None
        self._server: asyncio.Server | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def answer(self, question: PeerQuery, answer: Answer) -> None:
        """Sets this worker's answer to `question`."""
        self._answers[question] = answer

    def receive(self, notice: PeerNotice, receive: Receive) -> None:
        """Sets this worker's handler of `notice`."""
        self._receivers[notice] = receive

    async def __aenter__(self) -> WorkerPeers:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None and self._path is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def ask(self, question: PeerQuery) -> list[bytes]:
        """The answers of all workers, this one's first, without those that are late."""
        own = [self._answers[question]()] if question in self._answers else []
        return own + [text for text in await self._ask_others(question) if text]

    async def notify(self, notice: PeerNotice, message: bytes) -> None:
        """Sends `message`, which is one line, to all other workers. Logs a worker that does not accept it in time."""
        await self._ask_others(f"{notice} {message.decode()}")

    def notify_soon(self, notice: PeerNotice, message: bytes) -> None:
        """As `notify`, without waiting."""
        task = asyncio.get_running_loop().create_task(self.notify(notice, message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def metrics(self, *, openmetrics: bool = False) -> bytes:
        """The metrics of all workers as one exposition."""
        texts = await self.ask(PeerQuery.OPENMETRICS if openmetrics else PeerQuery.METRICS)
        return texts[0] if len(texts) == 1 else merge(texts)

    async def _ask_others(self, line: str) -> list[bytes | None]:
        if self._folder is None:
            return []
        sockets = await asyncio.to_thread(lambda folder: sorted(folder.glob("*.sock")), self._folder)
        return await asyncio.gather(*(_ask(path, line) for path in sockets if path != self._path))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, ValueError
        ):  # the other worker is gone, or its question is unknown
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                name, _, message = (await reader.readline()).strip().partition(b" ")
                if message:
                    self._take(PeerNotice(name.decode()), message)
                elif (question := PeerQuery(name.decode())) in self._answers:
                    writer.write(self._answers[question]())
                    await writer.drain()
        writer.close()

    def _take(self, notice: PeerNotice, message: bytes) -> None:
        try:
            self._receivers[notice](message)
        except ValueError:
            _log.exception("a notice of another worker cannot be read: %s", notice)


async def _ask(path: Path, line: str) -> bytes | None:
    """The answer of another worker; None without one."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(f"{line}\n".encode())
                return await reader.read(-1)
            finally:
                writer.close()
    except ConnectionRefusedError:
        _forget(path)  # its worker was killed
    except (OSError, TimeoutError) as exc:
        _log.warning("a worker did not answer: %s", exc)
    return None


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


class _Family:
    """The comments of one metric, and the workers' values by series."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.values: dict[str, list[float]] = {}
        self.exemplars: dict[str, str] = {}

    def take(self, line: str) -> None:
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a sample: {line}")
        series, value, exemplar = found.groups()
        self.values.setdefault(series, []).append(float(value))
        if exemplar is not None:
            self.exemplars.setdefault(series, exemplar)

    def lines(self, fold: Callable[[list[float]], float]) -> Iterable[str]:
        yield from (f"{comment}\n" for comment in self.comments)
        for series, values in self.values.items():
            exemplar = self.exemplars.get(series)
            yield f"{series} {fold(values)!r} {exemplar}\n" if exemplar else f"{series} {fold(values)!r}\n"


def merge(texts: Iterable[bytes]) -> bytes:
    """The sum of expositions, series by series, in the order of first appearance.

    Nearly all that the gateway exposes may be added: counters, histogram buckets, sums and counts, and gauges that
    count things. HELP, TYPE and UNIT lines are kept once.
    """
    families: dict[str, _Family] = {}
    ended = False
    for text in texts:
        family = families.setdefault("", _Family())
        for line in text.decode().splitlines():
            if line == _EOF:
                ended = True
            elif line.startswith("#"):
                family = families.setdefault(line.split(" ", 3)[2], _Family())
                if line not in family.comments:
                    family.comments.append(line)
            elif line:
                family.take(line)
    merged = [line for name, family in families.items() for line in family.lines(_fold(name))]
    return "".join([*merged, f"{_EOF}\n"] if ended else merged).encode()


def _fold(family: str) -> Callable[[list[float]], float]:
    if family.startswith(MEANS):
        return _mean
    return max if MAXIMA and family.startswith(MAXIMA) else sum


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
