"""Requests with the same beginning on the same server, or on any.

Four vLLM servers (SmolLM2-135M-Instruct, one thread each, prefix caching) behind a gateway. Each request has one of
`PROMPTS` system prompts and a question of its own; a server's cache holds about ten of them, running requests included.
By turns: servers by least outstanding requests, and by the prompt's beginning. Figures: time to first token, the mean
number of requests in the busiest server over the mean of all, and the share of prompt tokens that servers found in
their caches.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
from slipstream_core.settings import GatewaySettings
from slipstream_gateway.upstreams.pool import Replica
from slipstream_tools.up.smollm2 import smollm2_folder

from tests.benchmarks.harness import Option, Report, benchmark, turns
from tests.benchmarks.vllm_servers import servers
from tests.gateway.gateway_thread import Gateway
from tests.vllm.plugin.client import MODEL

SERVERS, PROMPTS, CLIENTS = 4, 16, 16
WAYS = {"least outstanding": False, "same beginning": True}
_CACHE = ("--num-gpu-blocks-override", "80")  # blocks of 128 tokens
_WORDS = ("customer", "agent", "parcel", "invoice", "account", "refund", "delivery", "machine", "contract", "order")
_MANIFEST = """apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: pair}}
spec:
  model: {model}
  engine:
    kind: external
    arms:
      plain: {{protocol: openai, model: {model}, endpoints: {endpoints}, prefixCaching: {affine}}}
"""


_replicas: list[Replica] = []
"""Those of all gateways, which run in this process, in the order of their construction."""


def _noted(replica: Replica, *arguments: object, **options: object) -> None:
    _construct(replica, *arguments, **options)
    _replicas.append(replica)


_construct, Replica.__init__ = Replica.__init__, _noted  # type: ignore[method-assign, assignment]  # gateways construct them


class Figures(NamedTuple):
    """Of one way in one round."""

    ttft_ms: float
    largest_load: float
    cached: float


def _system_prompts() -> list[str]:
    generator = random.Random(18)
    return [" ".join(generator.choices(_WORDS, k=900)) for _ in range(PROMPTS)]


async def _ask(client: httpx.AsyncClient, url: str, system: str, question: str) -> float:
    """Seconds to the first token."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 4, "ignore_eos": True, "stream": True, "temperature": 0}
    start = time.perf_counter()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        # The gateway sends nothing before the first generated token.
        times = [time.perf_counter() - start async for line in response.aiter_lines() if line]
    return times[0]


async def _load(url: str, requests: int, seed: int) -> list[float]:
    generator, prompts = random.Random(seed), _system_prompts()
    asked = [(generator.choice(prompts), " ".join(generator.choices(_WORDS, k=6))) for _ in range(requests)]
    found: list[float] = []

    async with httpx.AsyncClient(timeout=120) as client:

        async def one_client() -> None:
            while asked:
                found.append(await _ask(client, url, *asked.pop()))

        await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
    return found


class _Loads:
    """The gateway's requests in each server while the context is open, looked at twenty times a second."""

    def __init__(self) -> None:
        self._servers = _replicas[-SERVERS:]
        self._sums = [0] * SERVERS

    async def __aenter__(self) -> _Loads:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _look(self) -> None:
        while True:
            self._sums = [known + server.outstanding for known, server in zip(self._sums, self._servers, strict=True)]
            await asyncio.sleep(0.05)

    def largest(self) -> float:
        """The mean load of the busiest server over the mean of all."""
        return max(self._sums) / statistics.mean(self._sums)


def _total(metrics: str, name: str) -> float:
    """A metric of vLLM, over all its labels."""
    lines = metrics.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def _cached(urls: list[str]) -> tuple[float, float]:
    """The prompt tokens that servers found in their caches, and all."""
    texts = [httpx.get(f"{url}/metrics").text for url in urls]
    hits, asked = (sum(_total(text, f"prefix_cache_{name}_total") for text in texts) for name in ("hits", "queries"))
    return hits, asked


async def _watched(url: str, requests: int, seed: int) -> tuple[list[float], float]:
    async with _Loads() as loads:
        found = await _load(url, requests, seed)
    return found, loads.largest()


def _figures(folder: Path, urls: list[str], *, affine: bool, requests: int, seed: int) -> Figures:
    path = folder / "pair.yaml"
    path.write_text(_MANIFEST.format(model=MODEL, endpoints=urls, affine=str(affine).lower()))
    gateway = Gateway(path, GatewaySettings(manifest=path))
    try:
        asyncio.run(_load(gateway.url, requests, seed))  # the caches fill
        hits_before, asked_before = _cached(urls)
        found, largest = asyncio.run(_watched(gateway.url, requests, seed + 1))
        hits, asked = _cached(urls)
    finally:
        gateway.stop()
    return Figures(1e3 * statistics.median(found), largest, (hits - hits_before) / (asked - asked_before))


def measure(args: argparse.Namespace, report: Report) -> None:
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    model = smollm2_folder(report.note)
    with (
        servers(*("plain",) * SERVERS, model=model, threads=1, extra=_CACHE) as started,
        tempfile.TemporaryDirectory() as folder,
    ):
        urls = [server.url for server in started]
        for number, name in turns(list(WAYS), args.rounds, warm_up=0):
            figures = _figures(Path(folder), urls, affine=WAYS[name], requests=args.requests, seed=100 * number)
            found[name].append(figures)
            report.row(f"round {number + 1}: {name}", **figures._asdict())
    ratios = [before.ttft_ms / after.ttft_ms for before, after in zip(*found.values(), strict=True)]
    report.row("TTFT p50, least outstanding ÷ same beginning", median=statistics.median(ratios), least=min(ratios))


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        rounds=Option(5, 1, "turns of each way"),
        requests=Option(192, 8, "in each turn, after as many that fill the caches"),
    )
