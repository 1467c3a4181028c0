"""The gateway's end of the capture writer: starts the process, sends it answers, and counts what becomes of them.

Nothing here waits for the writer. What does not fit into the pipe's buffer is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import msgspec
from slipstream_core import logs
from slipstream_core.manifest.capture import Capture
from slipstream_core.tasks import beside

from slipstream_gateway.capture.copies import KeptAnswer
from slipstream_gateway.capture.frames import STARTED, CaptureCount, Configured, Result, decode_report, encode_frame

MAX_BUFFERED_BYTES = 16 * 1024 * 1024
PIPE_BYTES = 1024 * 1024
SEND_S = 0.25
ENCODED_AT_ONCE = 16
CLOSE_S, START_S = 10.0, 60.0
KILL_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LASTING_S = 60.0  # a writer that has run this long was no failed start
_log = logging.getLogger(__name__)


class CaptureChannel:
    """Sends answers to a writer process for the store at `location`. The process runs while `running` is open."""

    def __init__(self, location: str) -> None:
        self._command = (sys.executable, "-m", "slipstream_gateway.capture.writer", logs.format_in_use(), location)
        self._pipe: asyncio.WriteTransport | None = None
        self._is_started = False
        self._captures: dict[str, Capture] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._answers: list[KeptAnswer] = []
        self._frames: list[bytes] = []
        self._unread_bytes = 0
        self._sent: Counter[str] = Counter()
        self._counts: Counter[tuple[str, Result]] = Counter()

    def configure(self, captures: Mapping[str, Capture]) -> None:
        """The settings of all pairs that have some. The writer knows them before an answer, since files may have to be
        deleted earlier now."""
        changed = {pair: capture for pair, capture in captures.items() if self._captures.get(pair) != capture}
        self._captures = dict(captures)
        if self._pipe is not None:
            self._append_settings(changed, self._pipe)

    def send(self, answer: KeptAnswer) -> None:
        """Send one answer of a pair with settings. `ENCODED_AT_ONCE` answers are encoded at once, and the pipe gets all
        answers of `SEND_S` at once, which costs each of them less."""
        pipe, pair, size_bytes = self._pipe, answer.pair, answer.size_bytes
        if pipe is None:
            self.drop(pair, Result.WRITER_GONE)
            return
        if self._unread_bytes + size_bytes > MAX_BUFFERED_BYTES:
            self.drop(pair, Result.WRITER_BUSY)
            return
        self._answers.append(answer)
        self._unread_bytes += size_bytes
        self._sent[pair] += 1
        if len(self._answers) >= ENCODED_AT_ONCE:
            self._encode()
        if self._timer is None:
            self._send_later(pipe)

    def _append_settings(self, captures: Mapping[str, Capture], pipe: asyncio.WriteTransport) -> None:
        self._encode()
        for pair, capture in captures.items():
            self._frames += encode_frame(Configured(pair=pair, capture=capture))
        if self._timer is None:
            self._send_later(pipe)

    def _encode(self) -> None:
        """Encode the waiting answers. One that cannot be encoded is counted as failed."""
        for answer in self._answers:
            try:
                self._frames += encode_frame(answer.captured())
            except Exception:  # the error of one answer must not lose the other ones
                _log.exception("an answer could not be captured")
                self._sent[answer.pair] -= 1
                self.drop(answer.pair, Result.FAILED)
        self._answers.clear()

    def _send_later(self, pipe: asyncio.WriteTransport) -> None:
        self._timer = asyncio.get_running_loop().call_later(SEND_S, self._flush, pipe)

    def _flush(self, pipe: asyncio.WriteTransport) -> None:
        """Hand the waiting frames to the pipe. What the writer has not read stays in its buffer, and counts."""
        self._timer = None
        if pipe is not self._pipe or pipe.is_closing():
            return
        self._encode()
        if self._frames:
            pipe.writelines(self._frames)
            self._frames.clear()
        self._unread_bytes = pipe.get_write_buffer_size()
        if self._unread_bytes:
            self._send_later(pipe)

    def drop(self, pair: str, result: Result) -> None:
        """Count an answer that is not sent."""
        self._counts[pair, result] += 1

    def counts(self) -> list[CaptureCount]:
        """The counts so far. May be called from any thread."""
        counts = list(self._counts.items())
        return [CaptureCount(pair=pair, result=result, answers=answers) for (pair, result), answers in counts]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps a writer running. At the end it has `CLOSE_S` to write its rows, and `START_S` before that if it still
        starts: it compiles its rules at the first start."""
        async with beside(self._keep_running()):
            yield

    async def _keep_running(self) -> None:
        pause_s, loop = _FIRST_PAUSE_S, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                status = await self._run()
            except Exception as exc:  # the task's top: the next start may succeed
                status = repr(exc)
            _log.error("the capture writer ended with status %s; it is started again", status)
            pause_s = _FIRST_PAUSE_S if loop.time() - began_s > _LASTING_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _run(self) -> int | str:
        """Runs one writer to its end. Returns its exit status, or the reason why it did not start."""
        try:
            process, pipe = await self._start()
        except OSError as exc:
            return str(exc)
        self._pipe, self._is_started = pipe, False
        self._append_settings(self._captures, pipe)
        try:
            await self._read_reports(process)
            return await process.wait()
        finally:
            self._end(pipe)
            await asyncio.shield(self._close(process, pipe))

    async def _start(self) -> tuple[asyncio.subprocess.Process, asyncio.WriteTransport]:
        """A writer, and the pipe to it: a large one, since each time that it is full costs the gateway a wake-up."""
        read_end, write_end = os.pipe()
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with os.fdopen(read_end) as stdin, contextlib.ExitStack() as stack:
            end = stack.enter_context(os.fdopen(write_end, "wb"))
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=stdin, stdout=asyncio.subprocess.PIPE, start_new_session=True
            )
            pipe, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, end)
            stack.pop_all()  # the transport closes it
        return process, pipe

    def _end(self, pipe: asyncio.WriteTransport) -> None:
        """Hand over what waits, and send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush(pipe)
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._pipe, self._unread_bytes = None, None, 0
        self._answers.clear()
        self._frames.clear()

    async def _read_reports(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line == STARTED:
                self._is_started = True
                continue
            try:
                report = decode_report(line)
            except msgspec.DecodeError:
                continue
            self._counts[report.pair, report.result] += report.answers
            self._sent[report.pair] -= report.answers

    async def _close(self, process: asyncio.subprocess.Process, pipe: asyncio.WriteTransport) -> None:
        """End a writer, and count the answers of which it has not reported."""
        pipe.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._read_reports(process), CLOSE_S if self._is_started else START_S + CLOSE_S)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        # A process that waits for a disk which is gone cannot be killed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_S):
                await self._read_reports(process)  # those that it has written before its end
                await process.wait()
        for pair, count in self._sent.items():
            if count > 0:
                self._counts[pair, Result.WRITER_GONE] += count
        self._sent.clear()
