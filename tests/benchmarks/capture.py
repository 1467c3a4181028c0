"""What capture costs requests: `python -m tests.benchmarks.capture [--blocks 4] [--requests 3000]`.

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import psutil
import uvloop
from scipy.stats import t
from slipstream_gateway.capture.store import CaptureStore

from tests.benchmarks.gateway_load import Client
from tests.benchmarks.gateway_openai import MANIFEST, cpu_s, free_port, request_bytes, upstream, wait_port
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
def gateway(upstream_port: int, cores: Sequence[int], folder: Path, kept: str) -> Iterator[tuple[int, psutil.Process]]:
    """Its port, and its process. The answers of the model `kept` are captured below `folder`."""
    folder.mkdir()
    manifest, port = folder / "pairs.yaml", free_port()
    first = MANIFEST.format(port=upstream_port)
    both = f"{first}---{first.replace(*MODELS)}"
    manifest.write_text(both.replace(f"pair: {kept}}}", f"pair: {kept}, capture: {{share: 1}}}}"))
    command = [sys.executable, "-m", "slipstream_tools.cli", "gateway", "-f", str(manifest), "--port", str(port)]
    options = ["--capture-store", str(folder / "captures")]
    process = psutil.Process(subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL).pid)
    try:
        wait_port(port)
        eventually(process.children, "the capture writer")
        process.cpu_affinity([cores[0]])
        for child in process.children():
            child.cpu_affinity([cores[-1]])
        yield port, process
    finally:
        if process.is_running():
            process.terminate()
            process.wait(40)


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


def run_gateway(folder: Path, upstream_port: int, *, kept: str, requests: int) -> dict[str, Compared]:
    """The requests to a new gateway, by the kind of their answers."""
    cores = sorted(os.sched_getaffinity(0))
    with gateway(upstream_port, cores, folder, kept) as (port, process):
        [writer] = process.children()
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cores[-1]})
        made = {
            name: uvloop.run(compare(port, process, tokens, kept=kept, requests=requests))
            for name, tokens in TOKENS.items()
        }
        os.sched_setaffinity(0, mine)
        used_s = cpu_s(writer)
        process.terminate()
        process.wait(60)
    store = CaptureStore.at(str(folder / "captures"))
    rows = sum(store.read(file, ("id",)).num_rows for file in store.files())
    size = sum(file.size_bytes for file in store.files())
    if rows != len(TOKENS) * (requests + WARM_UP):
        raise RuntimeError(f"{rows} answers were captured")
    print(f"the writer: {rows} answers, {1e6 * used_s / rows:.0f} µs of its CPU and {size / rows:.0f} bytes each")
    return made


def tell(name: str, blocks: Sequence[Sequence[Compared]]) -> None:
    """Prints what capture adds: the mean of the blocks, and its 95 % interval by Student's t."""
    for unit, of in (("µs of CPU", Requests.cpu), ("ms, p50", Requests.p50)):
        added = [mean(of(each.kept) - of(each.plain) for each in block) for block in blocks]
        before = mean(of(each.plain) for block in blocks for each in block)
        half = t.ppf(0.975, len(added) - 1) * stdev(added) / len(added) ** 0.5
        print(f"{name:22} {before:10.3f} {mean(added):+10.3f} ± {half:.3f} {unit}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4, help="of two new gateways each (%(default)s)")
    parser.add_argument("--requests", type=int, default=3000, help="of each model and gateway (%(default)s)")
    options = parser.parse_args()
    if options.blocks < 2:
        parser.error(f"--blocks {options.blocks}: an interval needs at least two")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream_port = stack.enter_context(upstream(max(os.sched_getaffinity(0))))
        blocks = [
            [
                run_gateway(folder / f"{number}-{kept}", upstream_port, kept=kept, requests=options.requests)
                for kept in MODELS
            ]
            for number in range(options.blocks)
        ]
    print(f"{'':22} {'without':>10} {'added by capture, mean and its 95 % interval'}")
    for name in TOKENS:
        tell(name, [[each[name] for each in block] for block in blocks])
    return 0


if __name__ == "__main__":
    sys.exit(main())
