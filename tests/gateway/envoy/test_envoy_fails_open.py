"""`slipstream extproc` as a process beside a real Envoy: killed, restarted, drained, and sent what no Envoy sends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from slipstream_gateway.extproc.filter import ExternalProcessor, serving
from slipstream_gateway.extproc.messages import METHOD, ProcessingRequest, ProcessingResponse

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import manifest_text
from tests.support.clients import Clients
from tests.support.command import SLIPSTREAM, run_slipstream
from tests.support.envoy import Envoy
from tests.support.gateway_process import wait_live
from tests.support.metrics import total
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports

CLIENTS = 8


class Filter:
    """The process, which can be killed and started again on the same ports."""

    def __init__(self, manifest: Path, address: str = "") -> None:
        self._manifest = manifest
        [self.port, self.http_port] = lasting_ports(2)
        self.address = address or f"127.0.0.1:{self.port}"
        self.start()

    def start(self, *options: str) -> None:
        command = [*SLIPSTREAM, "extproc", "-f", str(self._manifest), "--ext-proc", self.address]
        command += ["--port", str(self.http_port), *options]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
        wait_live(self.child, f"http://127.0.0.1:{self.http_port}/health/live")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> str:
        """Ends the process; returns its messages."""
        self.child.send_signal(number)
        return self.child.communicate(timeout=PATIENCE_S)[1]


@pytest.fixture
def server(openai_server: Callable[..., OpenAiServer]) -> OpenAiServer:
    return openai_server()


@pytest.fixture
def filter_(tmp_path: Path, server: OpenAiServer) -> Iterator[Filter]:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text([server.url]))
    started = Filter(manifest)
    yield started
    if started.child.poll() is None:
        started.stop()


@pytest.fixture
def envoy(tmp_path: Path, filter_: Filter, server: OpenAiServer) -> Iterator[Envoy]:
    started = Envoy(tmp_path, filter_port=filter_.port, gateway_port=filter_.http_port, models=[server.port])
    yield started
    started.stop()


class Load(Clients):
    """Clients that send short requests without a pause, every second one streamed."""

    def __init__(self, url: str) -> None:
        super().__init__(CLIENTS)
        self.answers: Counter[str] = Counter()
        self._url = f"{url}/v1/chat/completions"

    def _run(self, number: int) -> None:
        body = {
            "model": "acme",
            "messages": [{"role": "user", "content": "tokens=5 gap=0.002"}],
            "stream": number % 2 == 0,
        }
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not self._over.is_set():
                self.answers[self._ask(client, body)] += 1

    def _ask(self, client: httpx.Client, body: dict[str, object]) -> str:
        try:
            answer = client.post(self._url, json=body)
        except httpx.HTTPError as exc:
            return f"failed: {exc!r}"
        is_whole = answer.text.rstrip().endswith("[DONE]") if body["stream"] else "usage" in answer.text
        if answer.status_code != 200 or not is_whole:
            return f"failed: {answer.status_code} {answer.text[-80:]}"
        return "decided" if "x-slipstream-arm" in answer.headers else "undecided"


def test_a_filter_that_is_killed_under_load_fails_no_request(envoy: Envoy, filter_: Filter) -> None:
    with Load(envoy.url) as load:
        for _ in range(3):
            seen = load.answers["decided"]
            eventually(lambda seen=seen: load.answers["decided"] > seen + 50, "requests are decided")  # type: ignore[misc]
            filter_.stop()
            seen = load.answers["undecided"]
            eventually(lambda seen=seen: load.answers["undecided"] > seen + 50, "Envoy goes on")  # type: ignore[misc]
            filter_.start()
    failed = {answer: count for answer, count in load.answers.items() if answer.startswith("failed")}
    assert not failed


def test_a_filter_that_is_told_to_end_finishes_its_streams(envoy: Envoy, filter_: Filter) -> None:
    with httpx.stream(
        "POST",
        f"{envoy.url}/v1/chat/completions",
        json={"model": "acme", "messages": [{"role": "user", "content": "tokens=40 gap=0.05"}], "stream": True},
        timeout=PATIENCE_S,
    ) as stream:
        pieces = stream.iter_text()
        text = next(pieces)
        filter_.child.send_signal(signal.SIGTERM)
        text += "".join(pieces)
    assert text.count('"content": "w') == 40
    assert text.rstrip().endswith("[DONE]")
    assert "Traceback" not in filter_.child.communicate(timeout=PATIENCE_S)[1]


def test_a_socket_file_serves_as_well(tmp_path: Path, server: OpenAiServer) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text([server.url]))
    started = Filter(manifest, address=f"unix:{tmp_path}/with:colon")
    try:
        answer = asyncio.run(_first_answer(started.address))
        assert answer.WhichOneof("response") == "request_headers"
    finally:
        started.stop()


def test_a_socket_file_of_a_running_filter_is_in_use(tmp_path: Path, server: OpenAiServer) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text([server.url]))
    started = Filter(manifest, address=f"unix:{tmp_path}/filter")
    try:
        done = run_slipstream("extproc", "-f", str(manifest), "--port", "0", "--ext-proc", started.address)
        assert done.returncode == 1
        assert done.stderr.endswith(f"cannot listen on {started.address}: Address already in use.\n")
        asyncio.run(_first_answer(started.address))
    finally:
        started.stop()
    restarted = Filter(manifest, address=started.address)  # the killed one has left its file
    restarted.stop()


async def test_a_message_that_cannot_be_decoded_does_not_let_its_request_pass(tmp_path: Path) -> None:
    """To end the call without an error would make Envoy go on."""
    processor = ExternalProcessor({}, lambda _: True, max_body_bytes=1000, has_keys=True)
    address = f"unix:{tmp_path / 'filter'}"
    async with (
        serving(processor, address, shared=False, drain_s=1.0, max_body_bytes=1000, max_bodies_bytes=10_000),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call = channel.stream_stream(METHOD)(iter([b"\xff\xff\xff"]))
        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "a message cannot be decoded"


async def _first_answer(address: str) -> Any:
    """The filter's answer to a request that is not its own."""
    message = ProcessingRequest()
    for key, value in ((":method", b"GET"), (":path", b"/")):
        message.request_headers.headers.headers.add(key=key, raw_value=value)
    message.request_headers.end_of_stream = True
    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(PATIENCE_S):
        call = channel.stream_stream(METHOD)()
        await call.write(message.SerializeToString())
        return ProcessingResponse.FromString(await call.read())


def test_an_address_in_use_is_one_clear_message(filter_: Filter) -> None:
    found = run_slipstream("extproc", "-f", str(filter_._manifest), "--port", "0", "--ext-proc", filter_.address)
    assert found.returncode == 1
    assert "slipstream: error: cannot listen on" in found.stderr
    assert filter_.address in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ext-proc", "nowhere"], "expected HOST:PORT or unix:/PATH, got 'nowhere'"),
        (["--ext-proc", "127.0.0.1:99999"], "expected 0 to 65535, got 99999"),
        (
            ["--ext-proc", "unix:/tmp/x", "--workers", "2", "--admin-port", "8081"],
            "--ext-proc unix:/tmp/x: a socket file serves one worker",
        ),
        (["--ext-proc", "0.0.0.0:9002"], "--ext-proc 0.0.0.0: other machines can reach it"),
    ],
)
def test_bad_addresses_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text(["http://127.0.0.1:9"]))
    found = run_slipstream("extproc", "-f", str(manifest), *options)
    assert found.returncode == 2
    assert message in found.stderr


async def _hostile(address: str, seed: int) -> None:
    """One stream of messages in a senseless order, or of bytes that are no messages."""
    draws = random.Random(seed)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(METHOD)()
        try:
            for _ in range(draws.randint(1, 6)):
                await call.write(_message(draws))
            await call.done_writing()
            async with asyncio.timeout(PATIENCE_S):
                while (answer := await call.read()) is not grpc.aio.EOF:
                    ProcessingResponse.FromString(answer)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the filter has ended the stream


def _message(draws: random.Random) -> bytes:
    if draws.random() < 0.3:
        return draws.randbytes(draws.randint(0, 200))
    message = ProcessingRequest()
    kind = draws.choice(["request_headers", "request_body", "response_headers", "response_body", "request_trailers"])
    if kind == "request_headers":
        values = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
        for key, value in values.items():
            junk = draws.randbytes(9) if draws.random() < 0.2 else value.encode()
            message.request_headers.headers.headers.add(key=key, raw_value=junk)
        message.request_headers.end_of_stream = draws.random() < 0.3
        message.protocol_config.request_body_mode = draws.choice([0, 2, 4, 77, -1])
        message.protocol_config.response_body_mode = draws.choice([0, 1, 4, 77])
    elif kind.endswith("_body"):
        getattr(message, kind).body = draws.choice([b"{", b'{"model": "acme"}', draws.randbytes(50), b""])
        getattr(message, kind).end_of_stream = draws.random() < 0.5
    else:
        getattr(message, kind).SetInParent()
    return bytes(message.SerializeToString())


def test_senseless_messages_harm_nothing(envoy: Envoy, filter_: Filter, server: OpenAiServer) -> None:
    async def many() -> None:
        for first in range(0, 600, 30):
            await asyncio.gather(*[_hostile(filter_.address, seed) for seed in range(first, first + 30)])

    asyncio.run(many())
    answer = httpx.post(
        f"{envoy.url}/v1/chat/completions",
        json={"model": "acme", "messages": [{"role": "user", "content": "tokens=2"}]},
        timeout=PATIENCE_S,
    )
    assert answer.headers["x-slipstream-arm"] == "plain"
    eventually(lambda: _in_flight(filter_) == 0, "no request is left behind")
    assert "Traceback" not in filter_.stop(signal.SIGTERM)


def _in_flight(filter_: Filter) -> float:
    return total(httpx.get(f"http://127.0.0.1:{filter_.http_port}/metrics").text, "slipstream_requests_in_flight")


@pytest.mark.slow  # many requests
def test_ten_thousand_mixed_requests(envoy: Envoy, filter_: Filter) -> None:
    """Streamed and whole, decided by one process: every one gets its own answer."""
    began_s = time.monotonic()
    with Load(envoy.url) as load:
        eventually(lambda: load.answers.total() > 10_000, "ten thousand answers", within_s=120.0)
    assert set(load.answers) == {"decided"}, (load.answers, time.monotonic() - began_s)
