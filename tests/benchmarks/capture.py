"""What capture costs requests.

One gateway with two models in front of a server that costs nothing. Each answer of one model is captured, none of the
other, and requests of both alternate. Another gateway captures the other model, since two equal models of a gateway
differ by 5 to 10 µs; a block is both. Two gateways would be less exact: two processes of the same program differ by up
to 80 µs for each request. The gateway has one core, load, server and capture writer the other, and requests come one
after the other with short pauses: at full speed they would leave the writer no processor. After long pauses, virtual
machines that reclaim unused pages spend milliseconds on the pages of the first request.

The CPU of each request is measured by itself. The slowest hundredth of both models is left out, since other work of the
machine took milliseconds there. The writes to the writer's pipe, four in a second, are not in the difference: they fall
on requests of both models.

Goals for each request: at most 15 µs of the gateway's CPU, and 0.02 ms of the median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import psutil
import uvloop
from scipy.stats import t
from slipstream_gateway.capture.store import CaptureStore

from tests.benchmarks import canned
from tests.benchmarks.harness import Option, Report, benchmark
from tests.benchmarks.load import Client, request_bytes
from tests.support.polling import eventually

PAUSE_S = 0.0004
ASLEEP_S = 10.0
COUNTED_SHARE = 0.99  # of the requests, from the fastest on
STREAM_TOKENS = 64
WARM_UP = 100  # requests
TOKENS = {"whole answer": 0, f"stream of {STREAM_TOKENS} chunks": STREAM_TOKENS}
MODELS = ("canned", "copied")  # names of the same length


class Requests(NamedTuple):
    """The µs of the gateway's CPU and the ms of each request of one model."""

    cpu_us: list[float]
    took_ms: list[float]

    def cpu(self) -> float:
        """The mean µs of CPU."""
        return mean(sorted(self.cpu_us)[: int(COUNTED_SHARE * len(self.cpu_us))])

    def p50(self) -> float:
        """The median of the ms."""
        return median(self.took_ms)


class Compared(NamedTuple):
    """The requests to one gateway whose answers were captured, and the other ones."""

    kept: Requests
    plain: Requests


@contextmanager
def gateway(upstream_port: int, folder: Path, kept: str) -> Iterator[tuple[int, psutil.Process]]:
    """Its port, and its process. The answers of the model `kept` are captured below `folder`."""
    folder.mkdir()
    first = canned.MANIFEST.format(port=upstream_port, policy="")
    both = f"{first}---{first.replace(*MODELS)}"
    file = folder / "pairs.yaml"
    file.write_text(both.replace(f"pair: {kept}}}", f"pair: {kept}, capture: {{share: 1}}}}"))
    options = ("-f", str(file), "--capture-store", str(folder / "captures"))
    with canned.gateway(folder, *options, core=None) as (port, process):
        eventually(process.children, "the capture writer")
        process.cpu_affinity([canned.GATEWAY_CORE])
        for child in process.children():
            child.cpu_affinity([canned.OTHER_CORE])
        yield port, process


def cpu_us(process: psutil.Process) -> float:
    """The time on a processor of the main thread, which does all work of a request. The kernel counts it in ns, and
    updates it when the thread goes to sleep, which is waited for. Raises `TimeoutError` after `ASLEEP_S`."""
    stat, deadline_s = Path(f"/proc/{process.pid}/stat"), time.monotonic() + ASLEEP_S
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the gateway has not slept for {ASLEEP_S:g} s")
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1000


async def compare(port: int, process: psutil.Process, tokens: int, *, kept: str, requests: int) -> Compared:
    """Asks for `requests` answers of each model, by turns first of the one and of the other: streams of `tokens`
    chunks, or whole answers where that is 0."""
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    bodies = {model: request_bytes(model=model, stream=tokens > 0, max_tokens=STREAM_TOKENS) for model in MODELS}
    made = {model: Requests([], []) for model in MODELS}
    for number in range(requests + WARM_UP):
        for model in MODELS if number % 2 else reversed(MODELS):
            before_us = cpu_us(process)
            answer = await client.ask(bodies[model])
            if (answer.status, answer.tokens) != (200, tokens):
                raise RuntimeError(f"{answer} is not whole")
            await asyncio.sleep(PAUSE_S)
            if number >= WARM_UP:
                made[model].cpu_us.append(cpu_us(process) - before_us)
                made[model].took_ms.append(1e3 * answer.seconds)
    client.close()
    return Compared(made.pop(kept), *made.values())


def run_gateway(folder: Path, upstream_port: int, *, kept: str, requests: int, report: Report) -> dict[str, Compared]:
    """The requests to a new gateway, by the kind of their answers."""
    with gateway(upstream_port, folder, kept) as (port, process):
        [writer] = process.children()
        made = {
            name: uvloop.run(compare(port, process, tokens, kept=kept, requests=requests))
            for name, tokens in TOKENS.items()
        }
        used_s = canned.cpu_s(writer)
    store = CaptureStore.at(str(folder / "captures"))
    rows = sum(store.read(file, ("id",)).num_rows for file in store.files())
    size = sum(file.size_bytes for file in store.files())
    report.require(rows == len(TOKENS) * (requests + WARM_UP), f"{rows} answers were captured")
    report.row("the writer, by answer", answers=rows, cpu_us=1e6 * used_s / rows, stored_bytes=size / rows)
    return made


def summarize(name: str, blocks: Sequence[Sequence[Compared]], report: Report) -> None:
    """Reports what capture adds: the mean of the blocks, and its 95 % interval by Student's t."""
    for unit, of in (("µs of CPU", Requests.cpu), ("ms, p50", Requests.p50)):
        added = [mean(of(each.kept) - of(each.plain) for each in block) for block in blocks]
        before = mean(of(each.plain) for block in blocks for each in block)
        half = t.ppf(0.975, len(added) - 1) * stdev(added) / len(added) ** 0.5
        report.row(f"{name}: {unit}", without=before, added=mean(added), plus_or_minus=float(half))


def measure(args: argparse.Namespace, report: Report) -> None:
    if args.blocks < 2:
        raise SystemExit(f"--blocks {args.blocks}: an interval needs at least two")
    with tempfile.TemporaryDirectory() as name, canned.upstream() as upstream_port:
        os.sched_setaffinity(0, {canned.OTHER_CORE})
        blocks = [
            [
                run_gateway(
                    Path(name) / f"{number}-{kept}", upstream_port, kept=kept, requests=args.requests, report=report
                )
                for kept in MODELS
            ]
            for number in range(args.blocks)
        ]
    for name in TOKENS:
        summarize(name, [[each[name] for each in block] for block in blocks], report)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        blocks=Option(4, 2, "of two new gateways each"),
        requests=Option(3000, 20, "of each model and gateway"),
    )
