"""Real parts for the gateway's tests: an OpenAI-compatible server over real sockets whose prompts are its script,
and the gateway itself under uvicorn in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_gateway.app.app import build_app

from tests.gateway.scripted_chat import ChatEvents, Events
from tests.gateway.scripted_responses import ResponseEvents, response, script_of
from tests.support.draws import SECRET
from tests.support.polling import PATIENCE_S, eventually
from tests.support.threaded_server import ConnectionServer


async def _leaves(reader: asyncio.StreamReader, within_s: float) -> bool:
    """Whether who waits for an answer goes away meanwhile."""
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

    `slow_s` and `status` are as in a script, whatever the text says. `pace_s` are the seconds between tokens where the
    text says `gap` alone; `odd_token` is the index of a token that this server spells otherwise, `finish_reason` what
    its answers end with. `models` are those that it lists; it refuses others as vLLM does. Without any it lists none,
    and serves every name. A server that is not `scripted` gives every text the same answer: for tests that make texts
    up, which may be a script by chance.
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
            data = [{"id": name, "object": "model"} for name in self.models]
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

    async def _play(self, request: Any, script: dict[str, str], reader: Any, writer: Any, *, is_response: bool) -> bool:
        slow_s = float(script.get("slow", 0)) or self.slow_s
        if slow_s and await _leaves(reader, slow_s):
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


class Gateway:
    """The gateway under uvicorn in a thread, for one manifest file."""

    def __init__(self, manifest: Path, settings: GatewaySettings, *, port: int = 0) -> None:
        self.manifest = manifest
        self.headers: dict[str, str] = {}  # with which metrics are read
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            build_app(settings),
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started or not self._thread.is_alive(), "the gateway's start")
        assert self._thread.is_alive(), "the gateway did not start"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series called `name` that carry `labels`."""
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics", headers=self.headers, timeout=PATIENCE_S).text.splitlines():
            series, _, value = line.rpartition(" ")
            wanted = all(f'{key}="{text}"' in series for key, text in labels.items())
            if series.split("{")[0] == name and wanted:
                total += float(value)
        return total

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)


def _manifest(plain: list[str], speculative: list[str] | None, *, upstream_model: str, policy: str) -> str:
    arm = "{{protocol: openai, model: {}, endpoints: {}}}".format
    lines = [
        "apiVersion: slipstream.dev/v1alpha1",
        "kind: ModelPair",
        "metadata: {name: pair}",
        "spec:",
        "  model: acme",
        "  maxDraftTokens: 5",
        "  engine:",
        "    kind: external",
        "    arms:",
        f"      plain: {arm(upstream_model, json.dumps(plain))}",
    ]
    if speculative is not None:
        lines.append(f"      speculative: {arm(upstream_model, json.dumps(speculative))}")
    lines += ["---", "apiVersion: slipstream.dev/v1alpha1", "kind: SpeculationPolicy", "metadata: {name: pair}"]
    lines += [f"spec: {{pair: pair, allowClientMode: true{policy}}}", ""]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def manifest_text() -> Callable[..., str]:
    """Text of a manifest for the model `acme` in front of OpenAI-compatible servers."""

    def text(
        plain: list[str], speculative: list[str] | None = None, *, upstream_model: str = "acme", policy: str = ""
    ) -> str:
        return _manifest(plain, speculative, upstream_model=upstream_model, policy=policy)

    return text


@pytest.fixture
def openai_server() -> Iterator[Callable[..., OpenAiServer]]:
    """Starts servers; all are stopped after the test."""
    servers: list[OpenAiServer] = []

    def start(port: int = 0) -> OpenAiServer:
        servers.append(OpenAiServer(port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def run_gateway() -> Callable[..., contextlib.AbstractContextManager[Gateway]]:
    """A context in which a gateway serves a manifest's text, written to `path`."""

    @contextlib.contextmanager
    def run(
        path: Path, text: str, *, deadlines: Deadlines | None = None, port: int = 0, **options: Any
    ) -> Iterator[Gateway]:
        path.write_text(text)
        options = {"assignment_secret": SECRET.encode(), **options}
        settings = GatewaySettings(manifest=path, deadlines=deadlines or Deadlines(connect_s=10.0), **options)
        started = Gateway(path, settings, port=port)
        try:
            yield started
        finally:
            started.stop()

    return run


@pytest.fixture
def gateway(
    tmp_path: Path, run_gateway: Callable[..., contextlib.AbstractContextManager[Gateway]]
) -> Iterator[Callable[..., Gateway]]:
    """Starts gateways for a manifest's text; all are stopped after the test."""
    with contextlib.ExitStack() as stack:

        def start(text: str, **options: Any) -> Gateway:
            return stack.enter_context(run_gateway(tmp_path / "pair.yaml", text, **options))

        yield start


@pytest.fixture
def serve() -> Iterator[Callable[[GatewaySettings], Gateway]]:
    """Starts gateways for settings; all are stopped after the test."""
    with contextlib.ExitStack() as stack:

        def start(settings: GatewaySettings) -> Gateway:
            started = Gateway(settings.manifest or Path(), settings)
            stack.callback(started.stop)
            return started

        yield start


@pytest.fixture(scope="session")
def start_openai_server() -> Callable[..., OpenAiServer]:
    """Starts a server that the caller stops."""
    return OpenAiServer


@pytest.fixture(scope="session")
def chat() -> Callable[..., dict[str, Any]]:
    """A chat body whose last message is `script`."""

    def body(script: str, **more: Any) -> dict[str, Any]:
        return {"model": "acme", "messages": [{"role": "user", "content": script}], **more}

    return body
