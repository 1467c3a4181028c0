"""What training a draft on captured answers gains.

A gateway with Triton answers requests of one task of the training corpus, with every answer captured, and `slipstream
drafts train` trains a draft on them. Then one Triton serves the embedded pair with the shipped draft and with the
trained one. Each request is new to both, and is asked of both in turn, one at a time, streamed and greedily; the engine
chooses the draft lengths. Intervals are by a bootstrap over the requests. `--folder` keeps answers and draft: those
that are there are used again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import httpx
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_engine.embedded.corpus import TASKS, Task, example
from slipstream_engine.embedded.workload import MAX_TOKENS, workload
from slipstream_gateway.capture.store import CaptureStore

from tests.benchmarks.harness import Option, Report, benchmark, interval
from tests.benchmarks.systems import MODEL, Streamed, running_system, stream

CAPTURE_SEED, SEED = 70_001, 41_017  # no seed of the shipped pair's training
CONCURRENCY = 8
_SHIPPED = '{kind: model, source: "embedded:draft"}'


def capture(store: Path, args: argparse.Namespace, report: Report) -> None:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "pair.yaml"
        manifest.write_text(EMBEDDED_MANIFEST.read_text() + "  capture: {share: 1.0, redact: []}\n")
        with running_system(manifest, capture_store=store) as system:
            asyncio.run(_ask_all(system.gateway_url, args.task, args.answers))
    files = CaptureStore.at(str(store))
    captured = sum(files.read(file, ("output_tokens",)).num_rows for file in files.files())
    report.row("captured answers", answers=captured, seconds=time.monotonic() - began_s)
    report.require(captured == args.answers, f"{captured} of {args.answers} answers were captured")


async def _ask_all(url: str, task: Task, count: int) -> None:
    numbers = itertools.count()
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask() -> None:
            while (number := next(numbers)) < count:
                drawn = example(CAPTURE_SEED, number, "train", {task: 1.0})
                body = {"model": MODEL, "messages": drawn.chat(), "max_tokens": MAX_TOKENS[task], "temperature": 0}
                (await client.post("/v1/chat/completions", json=body)).raise_for_status()

        await asyncio.gather(*(ask() for _ in range(CONCURRENCY)))


def train(store: Path, draft: Path, args: argparse.Namespace, report: Report) -> None:
    began_s = time.monotonic()
    start = ("--new", args.new) if args.new else ("--draft", "embedded:draft")
    command = [sys.executable, "-m", "slipstream_tools.cli", "drafts", "train", "--store", str(store), *start]
    options = ("--target", "embedded:target", "--passes", str(args.passes), "--output", str(draft))
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    report.row("training", seconds=time.monotonic() - began_s)


def manifest(drafts: Mapping[str, str]) -> str:
    """The embedded target with each of `drafts`, as models of these names; a draft is in YAML."""
    shipped = EMBEDDED_MANIFEST.read_text()
    texts = []
    for name, draft in drafts.items():
        text = shipped.replace("name: embedded", f"name: {name}").replace("pair: embedded", f"pair: {name}")
        texts.append(text.replace(MODEL, name).replace(_SHIPPED, draft))
    return "---\n".join(texts)


def tokens_per_step(answers: list[Streamed]) -> float:
    steps = sum(answer.usage["slipstream"]["target_steps"] for answer in answers)
    return float(sum(answer.usage["completion_tokens"] for answer in answers) / steps)


def compare(client: httpx.Client, task: Task, count: int, report: Report) -> None:
    names = ("shipped", "trained")
    for name in names:
        for request in workload(SEED + 1, 2, {task: 1.0}):  # opens connections, fills caches
            stream(client, request.messages, request.max_tokens, "speculative", model=name)
    pairs = []
    for number, request in enumerate(workload(SEED, count, {task: 1.0})):
        answers = {
            name: stream(client, request.messages, request.max_tokens, "speculative", model=name)
            for name in (names if number % 2 else names[::-1])
        }
        pairs.append((answers["shipped"], answers["trained"]))
    shipped, trained = (list(column) for column in zip(*pairs, strict=True))
    different = sum(one.text != other.text for one, other in pairs)
    report.row(
        f"{task}: shipped draft, trained draft",
        shipped_tokens_per_step=tokens_per_step(shipped),
        trained_tokens_per_step=tokens_per_step(trained),
        by_tokens_per_step=interval(
            lambda some: tokens_per_step([two for _, two in some]) / tokens_per_step([one for one, _ in some]), pairs
        ),
        by_e2e=interval(lambda some: fmean(one.seconds / two.seconds for one, two in some), pairs),
    )
    report.require(not different, f"{different} answers differ")


def measure(args: argparse.Namespace, report: Report) -> None:
    with ExitStack() as stack:
        folder = Path(args.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        store, draft = folder / "captures", (folder / "draft").resolve()
        if not store.exists():
            capture(store, args, report)
        if not draft.exists():
            train(store, draft, args, report)
        file = folder / "pairs.yaml"
        file.write_text(manifest({"shipped": _SHIPPED, "trained": f'{{kind: model, source: "{draft}"}}'}))
        with running_system(file) as system, httpx.Client(base_url=system.gateway_url, timeout=120) as client:
            compare(client, args.task, args.requests, report)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        task=Option("notes", "status", "of the answers", choices=TASKS),
        answers=Option(5000, 48, "to train on"),
        new=Option("", "1x64", "LAYERSxHIDDEN of a new draft; without it the shipped one is trained"),
        passes=Option(3, 1, "over the answers"),
        requests=Option(100, 2, "of the comparison"),
        folder=Option("", "", "keep answers and draft here"),
    )
