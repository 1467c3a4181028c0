"""What the gateway adds to the time to first token over calling Triton with `tritonclient`: `python -m
tests.benchmarks.gateway_triton [--prompts 60]`.

The same prompts by both ways, in turns, one at a time, greedy, plain: what differs is the gateway. Goal: 2 ms at
the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton
import uvloop
from tritonclient.utils import triton_to_np_dtype

from tests.benchmarks.system import MODEL, PAIR, running_system

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


def main() -> int:
    parser = argparse.ArgumentParser(description="Time to first token that the gateway adds to Triton's.")
    parser.add_argument("--prompts", type=int, default=60, help="how many (%(default)s)")
    options = parser.parse_args()
    with running_system() as system:
        uvloop.run(measure(system.triton_address, system.gateway_url, options.prompts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
