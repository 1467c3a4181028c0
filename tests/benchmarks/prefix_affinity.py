"""Requests with the same beginning on the same server, or on any: `python -m tests.benchmarks.prefix_affinity`.

Four vLLM servers (the embedded target, prefix caching) behind a gateway. Each request has one of `PROMPTS` system
prompts and a question of its own; a server's cache holds less than half of the system prompts. By turns: servers by
least outstanding requests, and by the prompt's beginning. Printed: time to first token, and the largest share of a
server over the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx
from slipstream_core.settings import GatewaySettings

from tests.benchmarks.vllm_servers import started_servers
from tests.gateway.conftest import Gateway
from tests.vllm.plugin.client import MODEL

SERVERS, PROMPTS, CLIENTS = 4, 32, 4
WAYS = {"least outstanding": False, "same beginning": True}
_CACHE = ("--num-gpu-blocks-override", "130")  # blocks of 128 tokens, for about twelve system prompts
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


class Figures(NamedTuple):
    """Of one way in one round."""

    ttft_ms: float
    largest_share: float


def _system_prompts() -> list[str]:
    generator = random.Random(18)
    return [" ".join(generator.choices(_WORDS, k=420)) for _ in range(PROMPTS)]


async def _ask(client: httpx.AsyncClient, url: str, system: str, question: str) -> float:
    """Seconds to the first token."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 4, "stream": True, "temperature": 0}
    start = time.perf_counter()
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if '"content":"' in line.replace(" ", ""):
                first_s = time.perf_counter() - start
                break
        async for _ in response.aiter_lines():
            pass
    return first_s


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


def _served(urls: list[str]) -> Counter[str]:
    """Answers of each server so far, by its own count."""
    found: Counter[str] = Counter()
    for url in urls:
        for line in httpx.get(f"{url}/metrics").text.splitlines():
            if line.startswith("vllm:request_success_total"):
                found[url] += int(float(line.rpartition(" ")[2]))
    return found


def _measure(folder: Path, urls: list[str], *, affine: bool, requests: int, seed: int) -> Figures:
    path = folder / "pair.yaml"
    path.write_text(_MANIFEST.format(model=MODEL, endpoints=urls, affine=str(affine).lower()))
    gateway = Gateway(path, GatewaySettings(manifest=path))
    try:
        asyncio.run(_load(gateway.url, requests, seed))  # the caches fill
        before = _served(urls)
        found = asyncio.run(_load(gateway.url, requests, seed + 1))
        served = _served(urls) - before
    finally:
        gateway.stop()
    return Figures(1e3 * statistics.median(found), max(served.values()) / (sum(served.values()) / len(urls)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=160)
    args = parser.parse_args()
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    with started_servers(*("plain",) * SERVERS, extra=_CACHE) as servers, tempfile.TemporaryDirectory() as folder:
        urls = [server.url for server in servers]
        for place in range(args.rounds):
            for name, affine in WAYS.items():
                figures = _measure(Path(folder), urls, affine=affine, requests=args.requests, seed=100 * place)
                found[name].append(figures)
                print(f"round {place}: {name}: TTFT p50 {figures.ttft_ms:.0f} ms, share {figures.largest_share:.2f}")
    ratios = [before.ttft_ms / after.ttft_ms for before, after in zip(*found.values(), strict=True)]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print(f"TTFT p50, least outstanding ÷ same beginning: {spread}")
    for name, rounds in found.items():
        print(f"{name}: largest share {max(figures.largest_share for figures in rounds):.2f} of the mean")


if __name__ == "__main__":
    main()
