"""A canned OpenAI-compatible server for measuring what a gateway adds, and a gateway process before it.

The server is one asyncio protocol without a framework. `"stream": true` gets `max_tokens` chunks at once, or `PACE_S`
apart where `max_tokens` is `PACED_TOKENS`; everything else gets one JSON answer.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httptools
import psutil
import uvloop

from tests.support.polling import eventually
from tests.support.ports import lasting_ports

MANIFEST = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: canned}}
spec:
  model: canned
  maxDraftTokens: 6
  engine:
    kind: external
    arms:
      plain: {{protocol: openai, endpoints: ["http://127.0.0.1:{port}"], model: canned}}
      speculative: {{protocol: openai, endpoints: ["http://127.0.0.1:{port}"], model: canned}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: canned}}
spec: {{pair: canned{policy}}}
"""
GATEWAY_CORE, OTHER_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
_STOP_S = 40
PACED_TOKENS = 61
PACE_S = 0.02
_USAGE = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}
_HEAD = {"id": "chatcmpl-canned", "created": 1, "model": "canned"}
_TEXT = "The customer reported a late delivery and asked to be called back."


def _whole() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
    body = json.dumps({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}).encode()
    return _chunk(b"data: " + body + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


WHOLE = _whole()
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE, TOKEN = _event({"role": "assistant", "content": ""}), _event({"content": "token "})
END = _event({}, "stop") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._stream: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        request = json.loads(body) if b'"stream"' in body else {}
        if not request.get("stream"):
            self._transport.write(WHOLE)
            return
        self._stream = asyncio.ensure_future(self._send(request["max_tokens"]))

    async def _send(self, tokens: int) -> None:
        self._transport.write(STREAM + ROLE)
        if tokens == PACED_TOKENS:
            for _ in range(tokens):
                await asyncio.sleep(PACE_S)
                self._transport.write(TOKEN)
        else:
            for start in range(0, tokens, 8):
                self._transport.write(TOKEN * min(8, tokens - start))
                await asyncio.sleep(0)
        self._transport.write(END)


def serve(port: int) -> None:
    """Serves on the loopback until the process ends."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(run())


@contextmanager
def upstream() -> Iterator[int]:
    """The port of a canned server in a process of its own, on `OTHER_CORE`."""
    [port] = lasting_ports(1)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    process.start()
    try:
        wait_port(port)
        os.sched_setaffinity(process.pid or 0, {OTHER_CORE})
        yield port
    finally:
        process.terminate()
        process.join()


def manifest(folder: Path, upstream_port: int, policy: str = "") -> tuple[str, str]:
    """The options of a gateway for a manifest before the server at `upstream_port`."""
    file = folder / "pair.yaml"
    file.write_text(MANIFEST.format(port=upstream_port, policy=policy))
    return "-f", str(file)


@contextmanager
def gateway(
    folder: Path, *options: str, core: int | None = GATEWAY_CORE, name: str = "gateway"
) -> Iterator[tuple[int, psutil.Process]]:
    """The port and the process of a `slipstream gateway` on `core`, with its log in `folder`."""
    [port] = lasting_ports(1)
    command = [sys.executable, "-m", "slipstream_tools.cli", "gateway", "--port", str(port), *options]
    with (folder / f"{name}.log").open("ab") as log:
        process = psutil.Popen(command, stderr=log)
    try:
        if core is not None:
            process.cpu_affinity([core])
        wait_port(port)
        yield port, process
    finally:
        process.terminate()
        process.wait(_STOP_S)


def wait_port(port: int) -> None:
    """Waits until a program listens on `port` of the loopback."""

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, f"a program on port {port}")


def cpu_s(process: psutil.Process) -> float:
    """The CPU time of `process` so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
