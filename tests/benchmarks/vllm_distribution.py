"""Does the draft length change what is sampled? `python -m tests.benchmarks.vllm_distribution [--answers 4000]`.

The first two tokens of many unseeded answers, at length 0 and at length 4, for six short prompts,
temperature 2, top-k 8: chi-squared tests that both are draws from one joint distribution.
Goal: no p-value below 1e-3 / 6 (Bonferroni).
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.vllm_servers import clients, servers
from tests.vllm.plugin.client import Server, together
from tests.vllm.plugin.test_sampling import HOT, p_value

PROMPTS = ("hello", "Name a colour.", "1 2 3", "the", "why", "x")
LIMIT = 1e-3 / len(PROMPTS)
AT_ONCE = 16


async def outcomes(server: Server, body: dict[str, Any], length: int, answers: int) -> Counter[tuple[int, ...]]:
    """How often each pair of first tokens came."""
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(0, answers, AT_ONCE):
        batch = await together(*(server.chat(body, length) for _ in range(AT_ONCE)))
        found.update(answer.token_ids[:2] for answer in batch)
    return found


async def report(urls: Sequence[str], answers: int) -> int:
    worst = 1.0
    print("prompt  outcomes  p-value")
    async with clients(*urls) as [server]:
        for number, prompt in enumerate(PROMPTS):
            body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 3, **HOT}
            plain = await outcomes(server, body, 0, answers)
            drafted = await outcomes(server, body, 4, answers)
            p = p_value(plain, drafted)
            worst = min(worst, p)
            print(f"{number:6d}  {len(plain.keys() | drafted.keys()):8d}  {p:.4g}", flush=True)
    print(f"smallest p-value {worst:.4g}, limit {LIMIT:.4g}")
    return 0 if worst >= LIMIT else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=4000, help="per prompt and length")
    parser.add_argument("--url")
    arguments = parser.parse_args()
    if arguments.url:
        return asyncio.run(report([arguments.url], arguments.answers))
    with servers("speculative") as urls:
        return asyncio.run(report(urls, arguments.answers))


if __name__ == "__main__":
    raise SystemExit(main())
