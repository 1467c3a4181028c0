"""What the filter costs inside Envoy: `python -m tests.benchmarks.envoy [--rounds 5] [--seconds 3]`.

In one run, by turns: Envoy alone, Envoy with an empty filter (grpc.aio, the same messages, nothing decided), and Envoy
with Slipstream's. Envoy and filter share core 0; the load and the server that answers at once share core 1. Printed:
answers per second with 32 connections, the median latency with one connection, and chunks per second of 16 streams;
of ratios the median of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
from slipstream_gateway.extproc.messages import METHOD, ProcessingRequest, ProcessingResponse

from tests.benchmarks.gateway_load import percentile, request_bytes, run
from tests.benchmarks.gateway_mock import serve
from tests.support.envoy import Envoy
from tests.support.ports import lasting_ports

CONNECTIONS, STREAMS, TOKENS = 32, 16, 300
WAYS = ("Envoy alone", "empty filter", "Slipstream")
_SERVICE, _, _NAME = METHOD.removeprefix("/").rpartition("/")
_MANIFEST = """apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: target}}
spec:
  model: target
  maxDraftTokens: 4
  engine:
    kind: external
    arms:
      plain: {{protocol: openai, model: target, endpoints: ["{url}"]}}
      speculative: {{protocol: openai, model: target, endpoints: ["{url}/v1"]}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: target}}
spec: {{pair: target}}
"""


class Figures(NamedTuple):
    """Of one way in one round."""

    answers_per_s: float
    latency_ms: float
    chunks_per_s: float
    bad: int


async def _empty(_: object, context: Any) -> None:
    """Answers each message so that Envoy goes on."""
    while (data := await context.read()) is not grpc.aio.EOF:
        kind = ProcessingRequest.FromString(data).WhichOneof("request")
        answer = ProcessingResponse()
        getattr(answer, kind).SetInParent()
        await context.write(answer.SerializeToString())


async def _serve_empty(port: int) -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(_empty)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, {_NAME: handler})])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


@contextlib.contextmanager
def _pinned(core: int, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ("taskset", "-c", str(core), sys.executable, "-m", *command)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def _way(name: str, folder: Path, server_port: int) -> Iterator[Envoy]:
    """Envoy on core 0, with its filter beside it."""
    filter_port, http_port = lasting_ports(2)
    with contextlib.ExitStack() as stack:
        if name == "empty filter":
            stack.enter_context(_pinned(0, "tests.benchmarks.envoy", "--empty", str(filter_port)))
        elif name == "Slipstream":
            manifest = folder / "pair.yaml"
            manifest.write_text(_MANIFEST.format(url=f"http://127.0.0.1:{server_port}"))
            options = ("-f", str(manifest), "--ext-proc", f"127.0.0.1:{filter_port}", "--port", str(http_port))
            stack.enter_context(_pinned(0, "slipstream_tools.cli", "extproc", *options))
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {0})  # Envoy inherits it
        envoy = Envoy(
            folder,
            filter_port=filter_port,
            gateway_port=http_port,
            models=[server_port],
            without_filter=name == "Envoy alone",
        )
        os.sched_setaffinity(0, cores)
        stack.callback(envoy.stop)
        time.sleep(3.0)
        _check(envoy, decides=name == "Slipstream")
        yield envoy


def _check(envoy: Envoy, *, decides: bool) -> None:
    """Fails if the filter is not there: Envoy would go on without it, and be fast."""
    body = {"model": "target", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
    answer = httpx.post(f"{envoy.url}/v1/chat/completions", json=body)
    assert ("x-slipstream-arm" in answer.headers) == decides, dict(answer.headers)


async def _measure(port: int, seconds: float) -> Figures:
    whole = request_bytes(model="target", stream=False, max_tokens=12)
    streamed = request_bytes(model="target", stream=True, max_tokens=TOKENS)
    await run(port, whole, connections=CONNECTIONS, seconds=1.0)
    answers = await run(port, whole, connections=CONNECTIONS, seconds=seconds)
    alone = await run(port, whole, connections=1, seconds=seconds)
    chunks = await run(port, streamed, connections=STREAMS, seconds=seconds, tokens=TOKENS)
    return Figures(
        len(answers.answers) / answers.seconds,
        1e3 * percentile([answer.seconds for answer in alone.answers], 0.5),
        sum(answer.tokens for answer in chunks.answers) / chunks.seconds,
        answers.bad + alone.bad + chunks.bad,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--empty", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--server", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.empty is not None:
        asyncio.run(_serve_empty(args.empty))
        return
    if args.server is not None:
        serve(args.server)
        return
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    [port] = lasting_ports(1)
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory() as folder, _pinned(1, "tests.benchmarks.envoy", "--server", str(port)):
        for _ in range(args.rounds):
            for name in WAYS:
                with _way(name, Path(folder), port) as envoy:
                    found[name].append(asyncio.run(_measure(envoy.port, args.seconds)))
    for name, rounds in found.items():
        medians = [statistics.median(getattr(figures, field) for figures in rounds) for field in Figures._fields[:3]]
        bad = sum(figures.bad for figures in rounds)
        print(f"{name:13} {medians[0]:8,.0f} answers/s  {medians[1]:6.2f} ms  {medians[2]:9,.0f} chunks/s  {bad} bad")
    for base in WAYS[:2]:
        for field in Figures._fields[:3]:
            ratios = [
                getattr(ours, field) / getattr(other, field)
                for ours, other in zip(found["Slipstream"], found[base], strict=True)
            ]
            print(
                f"Slipstream ÷ {base}, {field}: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
