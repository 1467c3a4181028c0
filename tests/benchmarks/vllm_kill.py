"""How soon a limit of 0 stops drafting: `python -m tests.benchmarks.vllm_kill [--kills 100]`.

Sixteen greedy streams draft on one server. `PUT /slipstream/limit` sets 0; the last drafted step is the last change of
vLLM's counter of drafts, read without a pause. Every answer must be the one that a run without a kill gives.
Goal: p99 of 100 ms at most. The figure contains the reading's own round trip and the step that runs meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from tests.benchmarks.gateway_load import percentile
from tests.benchmarks.vllm_servers import clients, servers
from tests.vllm.plugin.client import Answer, Server, drafting, summaries, together

GOAL_MS = 100.0
STREAMS = 16
SETTLED_S = 0.3
LONG = {"max_tokens": 160, "ignore_eos": True}


async def last_drafted_ms(server: Server) -> float:
    """Set the limit and watch the counter. Returns: milliseconds from the request to the last change that was seen."""
    started = time.perf_counter()
    kill = asyncio.create_task(server.set_limit(0))
    last, count = 0.0, -1.0
    while time.perf_counter() - started - last < SETTLED_S or not kill.done():
        now = await server.counter("vllm:spec_decode_num_drafts_total")
        if now != count:
            last, count = time.perf_counter() - started, now
    await kill
    return 1000.0 * last


async def report(urls: Sequence[str], kills: int) -> int:
    bodies = summaries(STREAMS)
    took_ms: list[float] = []
    wrong = 0
    async with clients(*urls) as [server]:
        expected: list[Answer] = await together(*(server.chat(body, 4, **LONG) for body in bodies))
        for _ in range(kills):
            streams = [asyncio.create_task(server.chat(body, 4, **LONG)) for body in bodies]
            await drafting(server)
            took_ms.append(await last_drafted_ms(server))
            answers: list[Answer] = await together(*streams)
            wrong += sum(a.token_ids != b.token_ids for a, b in zip(answers, expected, strict=True))
            await server.set_limit(None)
    took_ms.sort()
    shares = ", ".join(f"p{100 * share:g} {percentile(took_ms, share):.0f} ms" for share in (0.5, 0.9, 0.95, 0.99))
    print(f"{kills} kills of {STREAMS} streams: {shares}, longest {took_ms[-1]:.0f} ms (goal p99 {GOAL_MS:.0f})")
    print(f"{wrong} wrong answers of {kills * STREAMS}")
    return 0 if wrong == 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--url")
    arguments = parser.parse_args()
    if arguments.url:
        return asyncio.run(report([arguments.url], arguments.kills))
    with servers("speculative") as urls:
        return asyncio.run(report(urls, arguments.kills))


if __name__ == "__main__":
    raise SystemExit(main())
