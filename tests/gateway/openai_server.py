"""An OpenAI-compatible server over real sockets whose prompts are its script."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from tests.gateway.scripted_chat import ChatEvents, Events
from tests.gateway.scripted_responses import ResponseEvents, response, script_of
from tests.support.threaded_server import ConnectionServer


async def _leaves(reader: asyncio.StreamReader, within_s: float) -> bool:
    """Whether the client that waits for an answer disconnects."""
    if not within_s:
        return False
    try:
        return not await asyncio.wait_for(reader.read(1), within_s)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


def _usage(script: dict[str, str]) -> dict[str, Any]:
    """What a scripted answer says that it cost."""
    tokens = int(script.get("tokens", 3))
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    told: dict[str, Any] = {name: int(script.get("told", count)) for name, count in usage.items()}
    return told | ({"slipstream": {"engine_seconds": float(script["engine"])}} if "engine" in script else {})


class OpenAiServer(ConnectionServer):
    """An OpenAI-compatible server in a thread. The last message (or the prompt, or the last item of a response's input)
    is a script, words apart:

    `tokens=N` how many, `gap=S` seconds between them, `big=N` bytes of each, `status=N` to refuse, `die=N` to drop
    the connection after N tokens (0: before the head; announced: of a response, before its first item), `fail=N` to
    tell an error after N, `early-end` to end the body before the answer, `crlf`, `nousage`, `told=N` to say N for every
    number of the usage, `engine=S` to say S seconds of the engine's time in it, `accepted=N` and `rejected=N` for the
    draft tokens of an answer that is not streamed, `scored=N` to tell the log-probabilities of N tokens with each,
    `slow=S` before the head, `garbage` for what is no HTTP, `split=N` to send N bytes at a time.

    `slow_s` and `status` are as in a script, whatever the text says. `pace_s` are the seconds between tokens where
    the text says `gap` alone; `odd_token` is the index of a token that this server spells otherwise, `finish_reason`
    what its answers end with. `models` are those that it lists, with `max_model_len`; it refuses others as vLLM does.
    Without any it lists none, and serves every name. A server that is not `scripted` gives every text the same
    answer: for tests that make texts up, which may be a script by chance.
    """

    def __init__(self, port: int = 0, *, scripted: bool = True) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled = threading.Event()
        self.sent_bytes = 0
        self.pace_s = 0.0
        self.slow_s = 0.0
        self.status: int | None = None
        self.odd_token: int | None = None
        self.finish_reason = "stop"
        self.answer_id = "chatcmpl-up"
        self.models: list[str] = []
        self.max_model_len: Any = None
        self._scripted = scripted
        super().__init__(port)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._one_request(reader, writer):
            pass

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        body = await _body(reader, headers)
        if lines[0].startswith("GET"):
            data = [{"id": name, "object": "model", "max_model_len": self.max_model_len} for name in self.models]
            await self._reply(writer, 200, {"object": "list", "data": data})
            return True
        request = json.loads(body)
        if self.models and request["model"] not in self.models:
            message = f"The model `{request['model']}` does not exist."
            error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            await self._reply(writer, 404, {"error": error})
            return True
        self.requests.append(request)
        self.headers.append(headers)
        is_response = lines[0].split()[1].endswith("/responses")
        if is_response:
            text = script_of(request)
        else:
            text = request["messages"][-1]["content"] if request.get("messages") else request["prompt"]
        words = str(text).split() if self._scripted else ()
        script = dict(word.partition("=")[::2] for word in words)
        return await self._play(request, script, reader, writer, is_response=is_response)

    async def _leaves_while_held(self, reader: asyncio.StreamReader) -> bool:
        """Waits for `slow_s`, which a test may set to 0 meanwhile."""
        waited_s = 0.0
        while waited_s < self.slow_s:
            step_s = min(0.05, self.slow_s - waited_s)
            if await _leaves(reader, step_s):
                return True
            waited_s += step_s
        return False

    async def _play(self, request: Any, script: dict[str, str], reader: Any, writer: Any, *, is_response: bool) -> bool:
        if await _leaves(reader, float(script.get("slow", 0))) or await self._leaves_while_held(reader):
            self.cancelled.set()
            return False
        if self.status is not None:
            script = {**script, "status": str(self.status)}
        if "garbage" in script:
            writer.write(b"this is no HTTP at all\r\n\r\n")
            return False
        if script.get("die") == "0":
            return False
        if "status" in script:
            error = {"error": {"message": "scripted", "type": "scripted", "param": None, "code": "scripted"}}
            await self._reply(writer, int(script["status"]), error)
            return True
        if request.get("stream"):
            return await self._stream(request, script, reader, writer, is_response=is_response)
        tokens = int(script.get("tokens", 3))
        usage: dict[str, Any] | None = None
        if "nousage" not in script:
            counts = {"accepted": int(script.get("accepted", 2)), "rejected": int(script.get("rejected", 1))}
            details = {f"{name}_prediction_tokens": count for name, count in counts.items()}
            usage = {**_usage(script), "completion_tokens_details": details}
        content = "".join("odd " if index == self.odd_token else "word " for index in range(tokens))
        if is_response:
            await self._reply(writer, 200, response(request, content, usage, "completed"))
            return True
        said = {"text": content} if "prompt" in request else {"message": {"role": "assistant", "content": content}}
        choices = [{"index": i, **said, "finish_reason": self.finish_reason} for i in range(request.get("n") or 1)]
        answer = {"id": "chatcmpl-up", "object": "chat.completion", "created": 1, "model": request["model"]}
        await self._reply(writer, 200, {**answer, "choices": choices, "usage": usage})
        return True

    async def _reply(self, writer: asyncio.StreamWriter, status: int, value: Any) -> None:
        """In two pieces, as bodies of real servers arrive."""
        body = json.dumps(value).encode()
        retry = "retry-after: 7\r\n" if status in (429, 503) else ""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{retry}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:20])
        await writer.drain()
        await asyncio.sleep(0.002)
        writer.write(body[20:])
        await writer.drain()

    def _events(self, request: Any, script: dict[str, str], end: bytes, *, is_response: bool) -> Events:
        if is_response:
            return ResponseEvents(request, end)
        scored = int(script.get("scored", 0))
        return ChatEvents(request, end, answer_id=self.answer_id, finish_reason=self.finish_reason, scored=scored)

    async def _stream(
        self, request: Any, script: dict[str, str], reader: Any, writer: Any, *, is_response: bool
    ) -> bool:
        end = b"\r\n\r\n" if "crlf" in script else b"\n\n"
        tokens = int(script.get("tokens", 3))
        usage = _usage(script)
        told = None if "nousage" in script else usage
        events = self._events(request, script, end, is_response=is_response)

        async def send(data: bytes) -> None:
            step = int(script.get("split", len(data)))
            for start in range(0, len(data), step):
                part = data[start : start + step]
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.sent_bytes += len(part)
                await writer.drain()

        gone = asyncio.ensure_future(reader.read(1))
        try:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            writer.write(head + b"connection: close\r\n\r\n")  # as it does after each stream
            start = events.start()
            if script.get("die") == "announced":
                await send(b"".join(start[:2]))
                return False
            await send(b"".join(start))
            for index in range(tokens):
                if script.get("die") == str(index):
                    return False
                if script.get("fail") == str(index):
                    await send(b"".join(events.failure()))
                    return False
                await asyncio.wait([gone], timeout=float(script.get("gap") or self.pace_s))
                if gone.done():
                    self.cancelled.set()
                    return False
                word = "odd " if index == self.odd_token else f"w{index} "
                await send(events.token("word" * int(script.get("big", "0")) or word))
            if "early-end" not in script:
                for last in events.finish(told):
                    await send(last)
                await send(events.close(told))
            await asyncio.wait([gone], timeout=float(script.get("linger", 0)))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return False
        except ConnectionError:
            self.cancelled.set()
            return False
        finally:
            gone.cancel()
