"""Random requests on one server: `python -m tests.benchmarks.vllm_fuzz [--mixed 1000] [--count 10000]`.

First, greedy requests with random lengths share batches undisturbed: each answer must be that of length 0, and the sums
of the counts in the answers must be vLLM's and the plugin's counters.

Then the fuzz. Greedy and seeded requests with random lengths and sizes; some clients disconnect, limits and lengths
change in flight. Each complete answer must be the one that the same request got alone at length 0. At the end the KV
cache must be empty. Goal: no difference, no hang, no wrong answer, no block leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.benchmarks.vllm_servers import clients, servers
from tests.vllm.plugin.client import Answer, Refused, Server, summaries, together

IN_FLIGHT = 24
VARIANTS = 48
ABORTED = 0.15
CHANGED = 0.2
CHANGED_WITHIN_S = 0.4
HANG_S = 120.0
DRAIN_S = 30.0


def variants() -> list[dict[str, Any]]:
    """Requests whose answers do not depend on chance: greedy, or sampled with a seed."""
    chance = random.Random(5)
    return [
        {
            **body,
            "max_tokens": chance.randint(1, 60),
            **({"temperature": 1.0, "seed": number} if number % 3 == 0 else {"temperature": 0.0}),
        }
        for number, body in enumerate(summaries(VARIANTS))
    ]


async def mixed(server: Server, count: int, seed: int = 0) -> bool:
    """Send `count` greedy requests with lengths 0 to 4, print the comparison. Returns: whether everything is equal."""
    chance = random.Random(seed)
    requests = summaries(VARIANTS)
    expected = [(await server.chat(request, 0)).token_ids for request in requests]
    before = await server.counters()
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(which: int, length: int) -> tuple[int, Answer]:
        async with slots:
            return which, await server.chat(requests[which], length)

    answers = await together(*(one(chance.randrange(VARIANTS), chance.randint(0, 4)) for _ in range(count)))
    after = await server.counters()
    different = sum(answer.token_ids != expected[which] for which, answer in answers)
    summed = [sum(getattr(answer, name) for _, answer in answers) for name in ("drafts", "drafted", "accepted")]
    counted = [
        [after[prefix + name] - before[prefix + name] for name in ("drafts", "draft_tokens", "accepted_tokens")]
        for prefix in ("", "plugin_")
    ]
    print(f"{count} requests with lengths 0 to 4: {different} answers differ from plain decoding")
    print(f"drafts, drafted, accepted: answers {summed}, vLLM's counters {counted[0]}, the plugin's {counted[1]}")
    return not different and counted == [summed, summed]


async def fuzz(server: Server, count: int, seed: int = 0) -> Counter[str]:
    """Send `count` requests. Returns: how many were complete, aborted, changed, wrong, hung; `leaked` is 0 or 1."""
    chance = random.Random(seed)
    requests = variants()
    alone = [(await server.chat(request, 0)).token_ids for request in requests]
    found: Counter[str] = Counter()
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> None:
        which = chance.randrange(VARIANTS)
        name = f"fuzz-{seed}-{number}"
        async with slots:
            call = asyncio.create_task(server.chat(requests[which], chance.randint(0, 4), request_id=name))
            if chance.random() < CHANGED:
                await asyncio.sleep(chance.random() * CHANGED_WITHIN_S)
                found["changed"] += await _change(server, name, chance.randint(0, 4))
            if chance.random() < ABORTED:
                await asyncio.sleep(chance.random() * 0.5)
                call.cancel()
            try:
                answer = await asyncio.wait_for(call, HANG_S)
            except TimeoutError:
                found["hung"] += 1
            except asyncio.CancelledError:
                found["aborted"] += 1
            else:
                found["complete"] += 1
                found["wrong"] += answer.token_ids != alone[which]

    limits = asyncio.create_task(_move_limit(server, chance))
    try:
        await together(*(one(number) for number in range(count)))
    finally:
        limits.cancel()
        with suppress(asyncio.CancelledError):
            await limits
        await server.set_limit(None)
    found["leaked"] = int(not await _drained(server))
    return found


async def _change(server: Server, name: str, length: int) -> int:
    try:
        changed = await server.call("PUT", f"/slipstream/requests/chatcmpl-{name}", {"draft_length": length})
    except Refused as refused:
        if refused.status != 404:  # it has not arrived yet, or is complete
            raise
        return 0
    return int(changed["changed"])


async def _move_limit(server: Server, chance: random.Random) -> None:
    while True:
        await server.set_limit(chance.choice((None, 0, 1, 2, 3, 4)))
        if chance.random() < 0.1:
            await server.call("POST", "/slipstream/stop_drafting")
        await asyncio.sleep(chance.random())


async def _drained(server: Server) -> bool:
    """Whether the KV cache becomes empty: aborted requests end a moment later."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while await server.running() or await server.cache_usage():  # in another process
                await asyncio.sleep(0.2)
                await server.chat({"messages": [{"role": "user", "content": "."}], "max_tokens": 1}, 0)
    except TimeoutError:
        return False
    return True


async def report(urls: Sequence[str], mixed_count: int, count: int, seed: int) -> int:
    async with clients(*urls) as [server]:
        equal = await mixed(server, mixed_count, seed)
        found = await fuzz(server, count, seed)
    print(", ".join(f"{found[name]} {name}" for name in ("complete", "aborted", "changed", "hung", "wrong", "leaked")))
    return 0 if equal and not (found["hung"] or found["wrong"] or found["leaked"]) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixed", type=int, default=1000)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url")
    arguments = parser.parse_args()
    if arguments.url:
        return asyncio.run(report([arguments.url], arguments.mixed, arguments.count, arguments.seed))
    with servers("speculative") as urls:
        return asyncio.run(report(urls, arguments.mixed, arguments.count, arguments.seed))


if __name__ == "__main__":
    raise SystemExit(main())
