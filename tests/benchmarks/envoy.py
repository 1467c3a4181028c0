"""What the filter costs inside Envoy.

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
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import grpc
import httpx
import psutil
from slipstream_gateway.extproc.messages import METHOD, ProcessingRequest, ProcessingResponse

from tests.benchmarks import canned
from tests.benchmarks.harness import Interval, Option, Report, benchmark, percentile, turns
from tests.benchmarks.load import WHOLE, request_bytes, run
from tests.support.envoy import Envoy
from tests.support.polling import eventually
from tests.support.ports import lasting_ports

CONNECTIONS, STREAMS, TOKENS = 32, 16, 300
WAYS = ("Envoy alone", "empty filter", "Slipstream")
_SERVICE, _, _NAME = METHOD.removeprefix("/").rpartition("/")


class Figures(NamedTuple):
    """Of one way in one round."""

    answers_per_s: float
    latency_ms: float
    chunks_per_s: float
    bad: int


MEASURED = Figures._fields[:-1]


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
def _pinned(*command: str) -> Iterator[None]:
    """A module that runs on the filter's core."""
    process = psutil.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL)
    process.cpu_affinity([canned.GATEWAY_CORE])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def _way(name: str, folder: Path, server_port: int) -> Iterator[Envoy]:
    """Envoy on core 0, with its filter beside it."""
    filter_port, http_port = lasting_ports(2)
    with contextlib.ExitStack() as stack:
        if name == "empty filter":
            stack.enter_context(_pinned("tests.benchmarks.envoy", "--empty", str(filter_port)))
        elif name == "Slipstream":
            options = ("--ext-proc", f"127.0.0.1:{filter_port}", "--port", str(http_port))
            manifest = canned.manifest(folder, server_port)
            stack.enter_context(_pinned("slipstream_tools.cli", "extproc", *manifest, *options))
        os.sched_setaffinity(0, {canned.GATEWAY_CORE})  # Envoy inherits it
        envoy = Envoy(
            folder,
            filter_port=filter_port,
            gateway_port=http_port,
            models=[server_port],
            without_filter=name == "Envoy alone",
        )
        os.sched_setaffinity(0, {canned.OTHER_CORE})
        stack.callback(envoy.stop)
        if name != "Envoy alone":
            canned.wait_port(filter_port)
        eventually(
            lambda: _decides(envoy) == (name == "Slipstream"), "the filter in Envoy", ignoring=httpx.TransportError
        )
        yield envoy


def _decides(envoy: Envoy) -> bool:
    """Whether the filter is there: Envoy would go on without it, and be fast."""
    body = {"model": "canned", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
    answer = httpx.post(f"{envoy.url}/v1/chat/completions", json=body)
    return "x-slipstream-arm" in answer.headers


async def _figures(port: int, seconds: float) -> Figures:
    streamed = request_bytes(model="canned", stream=True, max_tokens=TOKENS)
    await run(port, WHOLE, connections=CONNECTIONS, seconds=min(1.0, seconds))
    answers = await run(port, WHOLE, connections=CONNECTIONS, seconds=seconds)
    alone = await run(port, WHOLE, connections=1, seconds=seconds)
    chunks = await run(port, streamed, connections=STREAMS, seconds=seconds, tokens=TOKENS)
    bad = answers.bad + alone.bad + chunks.bad
    return Figures(answers.per_s, percentile(alone.took_ms(), 0.5), chunks.chunks_per_s, bad)


def measure(args: argparse.Namespace, report: Report) -> None:
    if args.empty:
        asyncio.run(_serve_empty(args.empty))
        return
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    os.sched_setaffinity(0, {canned.OTHER_CORE})
    with tempfile.TemporaryDirectory() as folder, canned.upstream() as port:
        for _, name in turns(WAYS, args.rounds, warm_up=0):
            with _way(name, Path(folder), port) as envoy:
                found[name].append(asyncio.run(_figures(envoy.port, args.seconds)))
    for name, rounds in found.items():
        bad = sum(one.bad for one in rounds)
        columns = {field: median(getattr(one, field) for one in rounds) for field in MEASURED}
        report.row(name, **columns, bad=bad)
        report.require(not bad, f"{name}: {bad} answers were not whole")
    for base in WAYS[:2]:
        columns = {}
        for field in MEASURED:
            pairs = zip(found["Slipstream"], found[base], strict=True)
            ratios = [getattr(ours, field) / getattr(other, field) for ours, other in pairs]
            columns[field] = Interval(median(ratios), min(ratios), max(ratios))
        report.row(f"Slipstream ÷ {base}, median and range", **columns)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        rounds=Option(5, 1, "turns of each way"),
        seconds=Option(3.0, 0.3, "per figure"),
        empty=Option(0, 0, "serve the empty filter at this port: the benchmark starts itself with it"),
    )
