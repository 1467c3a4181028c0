"""What came back for a request, read after the answer's end, so that reading is in no measured time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from slipstream_core.errors import CommandError
from slipstream_tools.bench.transport import AnswerBroken, HttpTransport, Recording

from tests.e2e.chaos.asks import Ask

_OK = 200


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `done`: its end came, `[DONE]` or a whole body. `error` is what the server said was wrong, `broken`
    what the connection did; both are empty where nothing was. `unreached`: no connection was had at all. `resumed` is
    why the stream changed its server, once for each time. Times are by `time.perf_counter`; `moments_s` are those of
    the events with text."""

    ask: Ask
    status: int | None = None
    texts: tuple[str, ...] = ()
    finish_reasons: tuple[str | None, ...] = ()
    output_tokens: int | None = None
    resumed: tuple[str, ...] = ()
    done: bool = False
    error: str = ""
    broken: str = ""
    unreached: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    moments_s: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """Until the first text of a stream."""
        return self.moments_s[0] - self.began_s if self.moments_s and self.ask.streams else None

    @property
    def longest_gap_s(self) -> float:
        """Between two events with text."""
        moments = self.moments_s
        return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=0.0)


async def fetch(transport: HttpTransport, ask: Ask, recording: Recording, *, limit_s: float) -> Answer:
    """Send `ask` and read its answer; nothing that happens on the way is raised."""
    broken, unreached = "", False
    try:
        async with asyncio.timeout(limit_s):
            await transport.request("POST", ask.path, ask.content(), ask.headers, recording)
    except TimeoutError:
        broken = f"no end within {limit_s:g} s"
    except CommandError as error:
        broken, unreached = str(error), True
    except (AnswerBroken, OSError) as error:
        broken = str(error)
    reader = _Reader()
    try:
        reader.read(recording, streams=ask.streams)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        broken = broken or f"the answer is not OpenAI's: {error!r}"
    return msgspec.structs.replace(reader.answer(ask, recording), broken=broken, unreached=unreached)


class _Reader:
    """Reads a stream's events, or a whole body, as OpenAI's API has them."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._finished: dict[int, str] = {}
        self._usage: Mapping[str, Any] = {}
        self._moments_s: list[float] = []
        self._error = ""
        self._done = False

    def read(self, recording: Recording, *, streams: bool) -> None:
        if recording.status == _OK and streams:
            self._stream(recording)
            return
        body = b"".join(data for _, data in recording.chunks)
        if body:
            self._take(json.loads(body), recording.ended_s)
            self._done = True

    def answer(self, ask: Ask, recording: Recording) -> Answer:
        own = self._usage.get("slipstream")
        resumed = own.get("resumed") if isinstance(own, Mapping) else None
        return Answer(
            ask=ask,
            status=recording.status,
            texts=tuple(self._texts[index] for index in sorted(self._texts)),
            finish_reasons=tuple(self._finished.get(index) for index in sorted(self._texts)),
            output_tokens=self._usage.get("completion_tokens"),
            resumed=tuple(str(cause) for cause in resumed) if isinstance(resumed, list) else (),
            done=self._done,
            error=self._error,
            began_s=recording.began_s,
            ended_s=recording.ended_s,
            moments_s=tuple(self._moments_s),
        )

    def _stream(self, recording: Recording) -> None:
        rest = b""
        for moment_s, data in recording.chunks:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), moment_s)

    def _event(self, data: bytes, moment_s: float) -> None:
        if self._done:
            raise ValueError("an event after [DONE]")
        if data == b"[DONE]":
            self._done = True
        else:
            self._take(json.loads(data), moment_s)

    def _take(self, event: Mapping[str, Any], moment_s: float) -> None:
        if error := event.get("error"):
            self._error = str(error.get("code") or error.get("type") or error.get("message"))
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            index = choice["index"]
            part = choice.get("delta") or choice.get("message") or {}
            text = choice.get("text") or part.get("content") or ""
            self._texts[index] = self._texts.get(index, "") + text
            if text:
                if index in self._finished:
                    raise ValueError("text after the finish reason")
                self._moments_s.append(moment_s)
            if choice.get("finish_reason"):
                self._finished[index] = choice["finish_reason"]
