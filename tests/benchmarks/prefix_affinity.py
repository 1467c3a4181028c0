"""Requests with the same beginning on the same server, or on any: `python -m tests.benchmarks.prefix_affinity`.

Four vLLM servers (SmolLM2-135M-Instruct, one thread each, prefix caching) behind a gateway. Each request has one of
`PROMPTS` system prompts and a question of its own; a server's cache holds less than half of the system prompts. By
turns: servers by least outstanding requests, and by the prompt's beginning. Printed: time to first token, the requests
of the busiest server over the mean, and the share of prompt tokens that servers found in their caches.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
from slipstream_core.settings import GatewaySettings
from slipstream_tools.up.smollm2 import smollm2_folder

from tests.benchmarks.vllm_servers import started_servers
from tests.gateway.conftest import Gateway
from tests.vllm.plugin.client import MODEL

SERVERS, PROMPTS, CLIENTS = 4, 16, 8
WAYS = {"least outstanding": False, "same beginning": True}
_CACHE = ("--num-gpu-blocks-override", "64")  # blocks of 128 tokens
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
    cached: float


def _system_prompts() -> list[str]:
    generator = random.Random(18)
    return [" ".join(generator.choices(_WORDS, k=900)) for _ in range(PROMPTS)]


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


def _counted(url: str, name: str) -> int:
    """A counter of a server, over all its labels."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(f"{name}{{"))


def _counts(urls: list[str]) -> dict[str, list[int]]:
    names = ("request_success_total", "prefix_cache_queries_total", "prefix_cache_hits_total")
    return {name: [_counted(url, f"vllm:{name}") for url in urls] for name in names}


def _measure(folder: Path, urls: list[str], *, affine: bool, requests: int, seed: int) -> Figures:
    path = folder / "pair.yaml"
    path.write_text(_MANIFEST.format(model=MODEL, endpoints=urls, affine=str(affine).lower()))
    gateway = Gateway(path, GatewaySettings(manifest=path))
    try:
        asyncio.run(_load(gateway.url, requests, seed))  # the caches fill
        before = _counts(urls)
        found = asyncio.run(_load(gateway.url, requests, seed + 1))
        after = _counts(urls)
    finally:
        gateway.stop()
    served, asked, hits = ([b - a for a, b in zip(before[name], after[name], strict=True)] for name in after)
    assert sum(served) == requests
    return Figures(1e3 * statistics.median(found), max(served) / (requests / len(urls)), sum(hits) / sum(asked))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=160)
    args = parser.parse_args()
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    model = smollm2_folder(print)
    with (
        started_servers(*("plain",) * SERVERS, model=model, threads=1, extra=_CACHE) as servers,
        tempfile.TemporaryDirectory() as folder,
    ):
        urls = [server.url for server in servers]
        for place in range(args.rounds):
            for name, affine in WAYS.items():
                figures = _measure(Path(folder), urls, affine=affine, requests=args.requests, seed=100 * place)
                found[name].append(figures)
                print(
                    f"round {place}: {name}: TTFT p50 {figures.ttft_ms:.0f} ms, busiest server "
                    f"{figures.largest_share:.2f} of the mean, {figures.cached:.0%} of prompt tokens cached",
                    flush=True,
                )
    ratios = [before.ttft_ms / after.ttft_ms for before, after in zip(*found.values(), strict=True)]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print(f"TTFT p50, least outstanding ÷ same beginning: {spread}")
    for name, rounds in found.items():
        print(f"{name}: largest share {max(figures.largest_share for figures in rounds):.2f} of the mean")


if __name__ == "__main__":
    main()
