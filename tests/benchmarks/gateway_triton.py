"""What the gateway adds to the time to first token over calling Triton with `tritonclient`.

The same prompts by both ways, in turns, one at a time, greedy, plain: what differs is the gateway. Goal: 2 ms at
the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton
import uvloop
from tritonclient.utils import triton_to_np_dtype

from tests.benchmarks.harness import Option, Report, benchmark, interval
from tests.benchmarks.systems import MODEL, PAIR, running_system

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


async def pairs(address: str, url: str, count: int) -> list[tuple[float, float]]:
    """Milliseconds to the first token by both ways, prompt by prompt."""
    found = []
    client = triton.InferenceServerClient(address)
    async with aiohttp.ClientSession() as session:
        for index in range(-min(5, count), count):  # the first few open connections
            pair = await by_tritonclient(client, prompt(index)), await by_gateway(session, url, prompt(index))
            if index >= 0:
                found.append((1e3 * pair[0], 1e3 * pair[1]))
    await client.close()
    return found


def measure(args: argparse.Namespace, report: Report) -> None:
    with running_system() as system:
        found = uvloop.run(pairs(system.triton_address, system.gateway_url, args.prompts))
    direct, through = zip(*found, strict=True)
    report.row(
        "TTFT p50: goal +2 ms",
        tritonclient_ms=statistics.median(direct),
        gateway_ms=statistics.median(through),
        added_ms=interval(statistics.median, [after - before for before, after in found]),
    )


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, prompts=Option(60, 3, "asked by both ways"))
