"""One streamed request to the gateway, timed at the client. The moment of each chunk is recorded first and its JSON is
read after the answer's end, so that no measured time contains parsing."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from slipstream_core.errors import CommandError, shorten

from slipstream_tools.bench.transport import AnswerBroken, HttpTransport, Recording

_OK = 200


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; `error` is None for a complete one, `text` joins all choices. Times count from the request's start;
    `ttft_s` and `last_s` are those of the first and the last event with content."""

    status: int | None
    error: str | None
    headers: Mapping[str, str]
    text: str = ""
    usage: Mapping[str, Any] = {}
    ttft_s: float | None = None
    last_s: float | None = None
    e2e_s: float | None = None
    started_s: float = 0.0

    @property
    def output_tokens(self) -> int:
        return _count(self.usage.get("completion_tokens"))

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None where all tokens came at once."""
        if self.ttft_s is None or self.last_s is None or self.output_tokens < 2 or self.last_s <= self.ttft_s:
            return None
        return (self.last_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def text_hash(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def detail(self, name: str) -> int:
        """A count from OpenAI's `completion_tokens_details`."""
        details = self.usage.get("completion_tokens_details")
        return _count(details.get(name)) if isinstance(details, Mapping) else 0

    @property
    def prompt_tokens(self) -> int:
        return _count(self.usage.get("prompt_tokens"))

    @property
    def target_steps(self) -> int | None:
        """Passes of the target after the prompt; None where the server does not report it."""
        steps = self._slipstream.get("target_steps")
        return steps if isinstance(steps, int) and steps > 0 else None

    @property
    def rejected_at(self) -> tuple[int, ...]:
        """Steps by the position of their first rejected draft token; empty where the server does not report it."""
        counts = self._slipstream.get("rejected_at")
        return tuple(_count(count) for count in counts) if isinstance(counts, list) else ()

    @property
    def _slipstream(self) -> Mapping[str, Any]:
        fields = self.usage.get("slipstream")
        return fields if isinstance(fields, Mapping) else {}


class BenchClient:
    """A client for one gateway. `timeout_s` covers one whole request."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        """Raises `CommandError` where `url` is not an http(s) URL."""
        self._timeout_s = timeout_s
        self._url = url.rstrip("/")
        self._transport = HttpTransport(self._url, {"authorization": f"Bearer {api_key}"} if api_key else {})

    async def close(self) -> None:
        await self._transport.close()

    async def models(self) -> list[str]:
        """The models that the server lists. Raises `CommandError` where it lists none."""
        recording = Recording()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._transport.request("GET", "/v1/models", b"", {}, recording)
            return [str(model["id"]) for model in json.loads(_body(recording))["data"]]
        except (AnswerBroken, TimeoutError, ValueError, KeyError, TypeError) as error:
            why = f"status {recording.status}, {error or type(error).__name__}"
            raise CommandError(f"{self._url}: /v1/models is not that of an OpenAI-compatible server: {why}") from error

    async def run(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        """Run `body` as a stream. A refusal, a broken stream or a timeout gives an answer with an `error`.

        Raises:
            CommandError: the server cannot be reached; that says nothing about the request.
        """
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        content = json.dumps(streamed).encode()
        sent = {"content-type": "application/json", **headers}
        recording = Recording()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._transport.request("POST", path, content, sent, recording)
        except TimeoutError:
            return _failed(recording, f"no complete answer within {self._timeout_s:g} s")
        except AnswerBroken as error:
            return _failed(recording, str(error))
        return _answer(recording)


def _failed(recording: Recording, error: str) -> Answer:
    return Answer(status=recording.status, error=error, headers=recording.headers, started_s=recording.started_s)


def _answer(recording: Recording) -> Answer:
    """The answer in a recording that has ended: the text of each choice, the time of its content, and the usage."""
    if recording.status != _OK:
        return _failed(recording, _refusal(_body(recording)))
    texts: dict[int, str] = {}
    usage: Mapping[str, Any] = {}
    times_s: list[float] = []
    done = False
    try:
        for moment_s, data in _events(recording):
            if data == b"[DONE]":
                done = True
                continue
            event = json.loads(data)
            if error := event.get("error"):
                message = shorten(str(error.get("message", error)))
                return _failed(recording, f"the stream ended with an error: {message}")
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                delta = choice.get("delta")
                if text := (delta.get("content") if delta is not None else choice.get("text")) or "":
                    texts[choice["index"]] = texts.get(choice["index"], "") + text
                    times_s.append(moment_s)
        text = "\x00".join(texts[index] for index in sorted(texts))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        return _failed(recording, f"the stream is not in OpenAI's format: {shorten(str(error))}")
    if not done:
        return _failed(recording, "the stream ended early")
    return Answer(
        status=recording.status,
        error=None,
        headers=recording.headers,
        text=text,
        usage=usage,
        ttft_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        e2e_s=recording.ended_s - recording.began_s,
        started_s=recording.started_s,
    )


def _events(recording: Recording) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and the seconds from the request's start to its arrival."""
    rest = b""
    for moment_s, data in recording.chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield moment_s - recording.began_s, line[5:].strip()


def _body(recording: Recording) -> bytes:
    return b"".join(data for _, data in recording.chunks)


def _refusal(body: bytes) -> str:
    """The server's error message, or the beginning of its body."""
    try:
        return shorten(str(json.loads(body)["error"]["message"]))
    except (ValueError, TypeError, KeyError):
        return shorten(body.decode("utf-8", "replace").strip()) or "refused without a message"


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
