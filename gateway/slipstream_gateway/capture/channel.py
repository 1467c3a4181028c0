"""The gateway's end of the capture writer: starts the process, sends it answers, and counts what becomes of them.

Nothing here waits for the writer. What does not fit into the pipe's buffer is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.capture import Capture

from slipstream_gateway.capture.frames import Captured, Configured, Result, decode_report, encode_frame

MAX_BUFFERED_BYTES = 16 * 1024 * 1024
CLOSE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LASTING_S = 60.0  # a writer that has run this long was no failed start
_log = logging.getLogger(__name__)


class CaptureCount(NamedTuple):
    """The number of a pair's answers that were drawn for capture and had this result so far."""

    pair: str
    result: Result
    answers: int


class CaptureChannel:
    """Sends answers to a writer process, which runs while `running` is open. `command` starts one."""

    def __init__(self, location: str, *, command: Sequence[str] | None = None) -> None:
        writer = (sys.executable, "-m", "slipstream_gateway.capture.writer", location)
        self._command = tuple(command or writer)
        self._process: asyncio.subprocess.Process | None = None
        self._configured: dict[str, Capture] = {}
        self._sent: Counter[str] = Counter()
        self._counts: Counter[tuple[str, Result]] = Counter()

    def send(self, captured: Captured, capture: Capture) -> None:
        """Send one answer of a pair with the settings `capture`."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            self.drop(captured.pair, Result.WRITER_GONE)
            return
        frames = encode_frame(captured)
        if self._configured.get(captured.pair) is not capture:
            frames = encode_frame(Configured(pair=captured.pair, capture=capture)) + frames
        if process.stdin.transport.get_write_buffer_size() + len(frames) > MAX_BUFFERED_BYTES:
            self.drop(captured.pair, Result.WRITER_BUSY)
            return
        self._configured[captured.pair] = capture
        self._sent[captured.pair] += 1
        process.stdin.write(frames)

    def drop(self, pair: str, result: Result) -> None:
        """Count an answer that is not sent."""
        self._counts[pair, result] += 1

    def counts(self) -> list[CaptureCount]:
        """The counts so far. May be called from any thread."""
        return [CaptureCount(pair, result, count) for (pair, result), count in list(self._counts.items())]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps a writer running. At the end it has `CLOSE_S` to write what it has."""
        task = asyncio.create_task(self._keep_running())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_running(self) -> None:
        pause_s, loop = _FIRST_PAUSE_S, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            status = await self._run()
            _log.error("the capture writer ended with status %s; it is started again", status)
            pause_s = _FIRST_PAUSE_S if loop.time() - began_s > _LASTING_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _run(self) -> int | str:
        """Runs one writer to its end. Returns its exit status, or the reason why it did not start."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, start_new_session=True
            )
        except OSError as exc:
            return str(exc)
        self._process = process
        try:
            await self._read_reports(process)
            return await process.wait()
        finally:
            self._process = None
            self._configured.clear()
            await asyncio.shield(self._close(process))

    async def _read_reports(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                report = decode_report(line)
            except msgspec.DecodeError:
                continue
            self._counts[report.pair, report.result] += report.count
            self._sent[report.pair] -= report.count

    async def _close(self, process: asyncio.subprocess.Process) -> None:
        """End a writer, and count the answers of which it has not reported."""
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._read_reports(process), CLOSE_S)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        for pair, count in self._sent.items():
            if count > 0:
                self._counts[pair, Result.WRITER_GONE] += count
        self._sent.clear()
