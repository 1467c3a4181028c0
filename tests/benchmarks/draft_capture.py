"""Captures answers of the embedded pair: `python -m tests.benchmarks.draft_capture STORE --task notes --answers 5000`.

A gateway with Triton answers requests of one task of the training corpus, greedily, with every answer captured. The
requests are new: their seed is no seed of the shipped pair's training. Prints how many answers were captured in how
much time. `tests.benchmarks.draft_training` trains on them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from pathlib import Path

import httpx
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_engine.embedded.corpus import TASKS, Task, example
from slipstream_engine.embedded.workload import MAX_TOKENS
from slipstream_gateway.capture.store import CaptureStore

from tests.benchmarks.system import MODEL, running_system

SEED = 70_001
CONCURRENCY = 8
_CAPTURE = "  capture: {share: 1.0, redact: []}\n"


async def ask_all(url: str, task: Task, count: int) -> None:
    numbers = itertools.count()
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask() -> None:
            while (number := next(numbers)) < count:
                drawn = example(SEED, number, "train", {task: 1.0})
                body = {"model": MODEL, "messages": drawn.chat(), "max_tokens": MAX_TOKENS[task], "temperature": 0}
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()

        await asyncio.gather(*(ask() for _ in range(CONCURRENCY)))


def answers_in(store: Path) -> int:
    files = CaptureStore.at(str(store))
    return sum(files.read(file, ("output_tokens",)).num_rows for file in files.files())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="folder of the captured answers")
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--answers", type=int, default=5000)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "pair.yaml"
        manifest.write_text(EMBEDDED_MANIFEST.read_text() + _CAPTURE)
        with running_system(manifest, capture_store=args.store) as system:
            asyncio.run(ask_all(system.gateway_url, args.task, args.answers))
    print(f"{answers_in(args.store)} of {args.answers} answers captured in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
