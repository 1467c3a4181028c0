"""What the gateway adds to the time to first token over calling Triton with `tritonclient`: `python -m
tests.benchmarks.gateway_triton [--prompts 60]`.

The same prompts by both ways, in turns, one at a time, greedy, plain: what differs is the gateway. Goal: 2 ms at
the median.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton
import uvloop
from slipstream_gateway.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_gateway.up.command import local_pairs
from slipstream_gateway.up.gateway_process import GatewayProcess
from slipstream_gateway.up.model_repository import write_repository
from slipstream_gateway.up.options import UpOptions
from slipstream_gateway.up.triton_server import TritonPorts, TritonServer
from tritonclient.utils import triton_to_np_dtype

MODEL, PAIR = "slipstream-embedded", "embedded"
MAX_TOKENS = 8
_TURNS = "Agent: How can I help?\nCustomer: Order {number} has not arrived and I was promised Tuesday.\n"


def prompt(index: int) -> str:
    return f"Summarize this support call for the CRM.\n\n{_TURNS.format(number=4000 + index)}"


async def by_tritonclient(client: triton.InferenceServerClient, text: str) -> float:
    """Seconds to the first response."""

    def tensor(name: str, kind: str, value: object) -> triton.InferInput:
        item = triton.InferInput(name, [1], kind)
        item.set_data_from_numpy(np.array([value], dtype=triton_to_np_dtype(kind)))
        return item

    messages = json.dumps([{"role": "user", "content": text}])
    inputs = [
        tensor("messages", "BYTES", messages.encode()),
        tensor("max_tokens", "INT32", MAX_TOKENS),
        tensor("temperature", "FP32", 0.0),
        tensor("draft_tokens", "INT32", 0),
        tensor("stream", "BOOL", True),
    ]

    async def requests():  # type: ignore[no-untyped-def]
        yield {"model_name": PAIR, "inputs": inputs}

    start, first = time.perf_counter(), 0.0
    async for result, error in client.stream_infer(requests()):
        if error is not None:
            raise error
        first = first or time.perf_counter() - start
        if result.as_numpy("finish_reason")[0]:
            break
    return first


async def by_gateway(session: aiohttp.ClientSession, url: str, text: str) -> float:
    """Seconds to the first event."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    start = time.perf_counter()
    headers = {"x-slipstream-mode": "plain"}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(await response.text())
        await response.content.readany()
        first = time.perf_counter() - start
        await response.read()
    return first


async def measure(address: str, url: str, count: int) -> None:
    direct, through = [], []
    client = triton.InferenceServerClient(address)
    async with aiohttp.ClientSession() as session:
        for index in range(count + 5):
            pair = await by_tritonclient(client, prompt(index)), await by_gateway(session, url, prompt(index))
            if index >= 5:  # the first few open connections
                direct.append(pair[0])
                through.append(pair[1])
    await client.close()
    added = [1e3 * (b - a) for a, b in zip(direct, through, strict=True)]
    p50 = 1e3 * statistics.median(direct), 1e3 * statistics.median(through)
    print(f"TTFT p50 ms: tritonclient {p50[0]:.2f}, gateway {p50[1]:.2f}, difference {p50[1] - p50[0]:+.2f}")
    print(f"difference by prompt, p50 ms: {statistics.median(added):+.2f}  (goal: +2 at most, {count} prompts)")


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main() -> int:
    parser = argparse.ArgumentParser(description="Time to first token that the gateway adds to Triton's.")
    parser.add_argument("--prompts", type=int, default=60, help="how many (%(default)s)")
    options = parser.parse_args()
    table = load_file(EMBEDDED_MANIFEST)
    grpc, http, metrics, port = free_ports(4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = write_repository(local_pairs(table), manifest_folder=table.folder, folder=folder / "models")
        server = TritonServer(
            model_repository=repository,
            run_dir=folder,
            ports=TritonPorts(grpc=grpc, http=http, metrics=metrics),
        )
        gateway = None
        try:
            server.wait_ready(timeout_s=90)
            up = UpOptions(port=port, grpc_port=grpc)
            gateway = GatewayProcess(options=up, local_pairs=[PAIR], run_dir=folder)
            gateway.wait_ready(timeout_s=60)
            uvloop.run(measure(f"127.0.0.1:{grpc}", up.url, options.prompts))
        finally:
            if gateway is not None:
                gateway.stop()
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
