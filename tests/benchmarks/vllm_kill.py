"""How soon a limit of 0 stops drafting.

Sixteen greedy streams draft on one server. `PUT /slipstream/limit` sets 0; the last drafted step is the last change of
vLLM's counter of drafts, read without a pause. Every answer must be the one that a run without a kill gives.
Goal: p99 of 100 ms at most. The figure contains the reading's own round trip and the step that runs meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from tests.benchmarks.harness import Option, Report, benchmark, percentiles
from tests.benchmarks.vllm_servers import clients, servers
from tests.vllm.plugin.client import Answer, Server, drafting, summaries, together

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


async def kills(url: str, count: int) -> tuple[list[float], int]:
    """Milliseconds of each kill, and how many answers were wrong."""
    bodies = summaries(STREAMS)
    took_ms: list[float] = []
    wrong = 0
    async with clients(url) as [server]:
        expected: list[Answer] = await together(*(server.chat(body, 4, **LONG) for body in bodies))
        for _ in range(count):
            streams = [asyncio.create_task(server.chat(body, 4, **LONG)) for body in bodies]
            await drafting(server)
            took_ms.append(await last_drafted_ms(server))
            answers: list[Answer] = await together(*streams)
            wrong += sum(a.token_ids != b.token_ids for a, b in zip(answers, expected, strict=True))
            await server.set_limit(None)
    return took_ms, wrong


def measure(args: argparse.Namespace, report: Report) -> None:
    with servers("speculative") as [server]:
        took_ms, wrong = asyncio.run(kills(server.url, args.kills))
    answers = args.kills * STREAMS
    report.row(f"{STREAMS} streams", **percentiles(took_ms, "ms", 50, 90, 95, 99), wrong=wrong, answers=answers)
    report.require(not wrong, f"{wrong} wrong answers")


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, kills=Option(100, 1, "kills of all streams"))
