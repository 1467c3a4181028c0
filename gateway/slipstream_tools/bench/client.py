"""One streamed request to the gateway, timed at the client. The moment of each chunk is recorded first and its JSON is
read after the answer's end, so that no measured time contains parsing."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.errors import CommandError, shorten

from slipstream_tools.bench.results import Measured
from slipstream_tools.bench.transport import AnswerBroken, HttpTransport, Recording

_OK = 200


class Answer(Measured, frozen=True, kw_only=True):
    """One answer; `text` joins all choices. `last_s` is the time from the request's start to the last content."""

    headers: Mapping[str, str]
    text: str = ""
    last_s: float | None = None


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
            usage = _mapping(event, "usage") or usage
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
    details, extra = _mapping(usage, "completion_tokens_details"), _mapping(usage, "slipstream")
    accepted, rejected_at = _count(details.get("accepted_prediction_tokens")), extra.get("rejected_at")
    output_tokens = _count(usage.get("completion_tokens"))
    spread_s = times_s[-1] - times_s[0] if times_s else 0.0
    return Answer(
        status=recording.status,
        headers=recording.headers,
        text=text,
        text_hash=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        ttft_s=times_s[0] if times_s else None,
        last_s=times_s[-1] if times_s else None,
        tpot_s=spread_s / (output_tokens - 1) if spread_s > 0 and output_tokens > 1 else None,
        e2e_s=recording.ended_s - recording.began_s,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=output_tokens,
        drafted=accepted + _count(details.get("rejected_prediction_tokens")),
        accepted=accepted,
        steps=_count(extra.get("target_steps")) or None,
        rejected_at=tuple(map(_count, rejected_at)) if isinstance(rejected_at, list) else (),
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


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
