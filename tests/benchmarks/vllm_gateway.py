"""What the gateway adds before vLLM, and how soon a kill lands there: `python -m tests.benchmarks.vllm_gateway
[--pairs 400] [--kills 100] [--streams 16]`.

Time to first token: the same streaming request, directly, through the gateway and through `pass_through`, the least
that a Python gateway can do, in random order over kept connections, one request at a time; all with the same draft
length. The figure is the median of the differences from the direct request, with a bootstrap interval of 95 %. Goal:
1.5 ms at most.

Kill: streams run with drafts; the manifest is replaced by one with `killSwitch: true`. A kill has landed when the last
draft token is counted in vLLM's own metrics, which are read without a pause: the time of the first reading with the
final count, so that the figure is too long by up to one reading. Every text must be that of an undisturbed run. Goal:
p99 of 100 ms at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from slipstream_tools.up.processes import Child

from tests.benchmarks.gateway_load import percentile
from tests.benchmarks.gateway_openai import wait_port
from tests.benchmarks.system import MODEL, free_ports
from tests.benchmarks.vllm_servers import DRAFT_TOKENS, servers
from tests.vllm.plugin.client import Server

TTFT_GOAL_MS = 1.5
KILL_GOAL_MS = 100.0
FIRST_TOKENS = 4
ANSWER_TOKENS = 240
QUIET_S = 0.5
RESAMPLES = 2000
DIRECT, GATEWAY, PASS_THROUGH = "direct", "the gateway", "a pass-through"
XARGS = {"slipstream_draft_length": DRAFT_TOKENS, "slipstream_class": "open_chat/long"}
ASKED = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": str(DRAFT_TOKENS)}
COUNTER = "slipstream_vllm_draft_tokens_total"
MANIFEST = """\
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: embedded}}
spec:
  model: {model}
  maxDraftTokens: {draft_tokens}
  killSwitch: {killed}
  engine: {{kind: vllm, endpoints: ["{url}"]}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: embedded}}
spec: {{pair: embedded, allowClientMode: true, maxTemperature: 2, parityShare: 0}}
"""


class Gateway(NamedTuple):
    url: str
    vllm_url: str
    pass_through_url: str
    manifest: Path

    def write(self, *, killed: bool) -> float:
        """Replace the manifest at once; when that was done, by `time.monotonic`."""
        new = self.manifest.with_suffix(".new")
        text = MANIFEST.format(model=MODEL, draft_tokens=DRAFT_TOKENS, killed=json.dumps(killed), url=self.vllm_url)
        new.write_text(text)
        new.replace(self.manifest)
        return time.monotonic()


@contextmanager
def running(vllm_url: str | None) -> Iterator[Gateway]:
    """The gateway before `vllm_url`, or before a server of its own."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        if vllm_url is None:
            [vllm_url] = cleanup.enter_context(servers("speculative"))
        ports = free_ports(2)
        url, pass_through_url = (f"http://127.0.0.1:{port}" for port in ports)
        found = Gateway(url, vllm_url, pass_through_url, folder / "pair.yaml")
        found.write(killed=False)
        gateway = ["slipstream_tools.cli", "gateway", "-f", str(found.manifest), "--port", str(ports[0])]
        pass_through = ["tests.benchmarks.pass_through", str(ports[1]), vllm_url]
        for port, module in zip(ports, ([*gateway, "--conformance", "off"], pass_through), strict=True):
            command, log = [sys.executable, "-m", *module], folder / f"{module[0]}.log"
            child = Child(name=module[0], command=command, log_path=log, env=dict(os.environ))
            cleanup.callback(child.stop, timeout_s=10)
            wait_port(port)
        yield found


def body(prompt: str, tokens: int) -> dict[str, Any]:
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    return {**asked, "stream": True, "stream_options": {"include_usage": True}}


async def ttft_s(session: aiohttp.ClientSession, url: str, fields: dict[str, Any], headers: dict[str, str]) -> float:
    """The time to the first event of an answer, which is read to its end."""
    started_s = time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=fields, headers=headers) as response:
        response.raise_for_status()
        first_s = 0.0
        async for _ in response.content.iter_any():
            first_s = first_s or time.perf_counter()
    return first_s - started_s


async def measure_ttft(session: aiohttp.ClientSession, found: Gateway, pairs: int) -> list[dict[str, float]]:
    """Milliseconds by side, request by request. Prompts differ: vLLM keeps what it has computed."""
    chance = random.Random(20)  # the same order in every run
    sides: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
        DIRECT: (found.vllm_url, {"vllm_xargs": XARGS}, {}),
        PASS_THROUGH: (found.pass_through_url, {"vllm_xargs": XARGS}, {}),
        GATEWAY: (found.url, {}, ASKED),
    }
    measured = []
    for index in range(-pairs // 10, pairs):
        times = {}
        for side in chance.sample(list(sides), len(sides)):
            url, more, headers = sides[side]
            fields = body(f"{index} {side[:7]:7}. " + "Agent: How can I help you? " * 8, FIRST_TOKENS)
            times[side] = 1e3 * await ttft_s(session, url, {**fields, **more}, headers)
        if index >= 0:  # those before it warm all of them up
            measured.append(times)
    return measured


def interval(values: list[float]) -> tuple[float, float]:
    """95 % for the median, by resampling."""
    chance = random.Random(7)  # the same interval for the same values
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


class DraftMeter:
    """Reads how many tokens vLLM has drafted, without a pause, and keeps each new count with its time."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._server = Server(session, url)
        self.seen: list[tuple[float, float]] = []

    async def run(self) -> None:
        while True:
            count = await self._server.counter(COUNTER)
            now_s = time.monotonic()
            if not self.seen or count != self.seen[-1][1]:
                self.seen.append((now_s, count))
            await asyncio.sleep(0)


async def stream_text(session: aiohttp.ClientSession, found: Gateway, index: int, began: asyncio.Event) -> str:
    fields = body(f"Customer {index}: my order is late. Agent:", ANSWER_TOKENS)
    text = ""
    async with session.post(f"{found.url}/v1/completions", json=fields, headers=ASKED) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
                began.set()
    return text


async def run_streams(
    session: aiohttp.ClientSession, found: Gateway, streams: int, *, kill: bool
) -> tuple[list[str], float | None]:
    """The texts, and the milliseconds from the kill to the last draft; None: nothing was drafted after it."""
    began = [asyncio.Event() for _ in range(streams)]
    tasks = [asyncio.create_task(stream_text(session, found, index, event)) for index, event in enumerate(began)]
    meter = DraftMeter(session, found.vllm_url)
    reading = asyncio.create_task(meter.run())
    await asyncio.gather(*(event.wait() for event in began))
    killed_s = 0.0
    if kill:
        await asyncio.sleep(random.random() * 0.1)  # at any point between two looks at the file
        running = sum(not task.done() for task in tasks)
        killed_s = await asyncio.to_thread(found.write, killed=True)
        assert running == streams, "an answer ended before the kill: more tokens are needed"
    texts = list(await asyncio.gather(*tasks))
    await asyncio.sleep(QUIET_S)
    reading.cancel()
    last_s = max((at_s for at_s, _ in meter.seen[1:]), default=killed_s)
    return texts, 1e3 * (last_s - killed_s) if kill and last_s > killed_s else None


async def measure_kills(
    session: aiohttp.ClientSession, found: Gateway, kills: int, streams: int
) -> tuple[list[float], int]:
    """Milliseconds of each kill, and how many texts differ from an undisturbed run."""
    undisturbed, _ = await run_streams(session, found, streams, kill=False)
    landed, wrong = [], 0
    for _ in range(kills):
        texts, land_ms = await run_streams(session, found, streams, kill=True)
        wrong += sum(text != other for text, other in zip(texts, undisturbed, strict=True))
        if land_ms is not None:
            landed.append(land_ms)
        await asyncio.to_thread(found.write, killed=False)
        await until_speculative(session, found)
    return landed, wrong


async def until_speculative(session: aiohttp.ClientSession, found: Gateway) -> None:
    async with asyncio.timeout(30):
        while True:
            async with session.post(f"{found.url}/v1/route", json=body("a", 8), headers=ASKED) as response:
                if (await response.json())["arm"] == "speculative":
                    return
            await asyncio.sleep(0.02)


async def measure(found: Gateway, pairs: int, kills: int, streams: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await until_speculative(session, found)
        if pairs:
            report_ttft(await measure_ttft(session, found, pairs))
        if kills:
            landed, wrong = await measure_kills(session, found, kills, streams)
            report_kills(landed, wrong, kills, streams)


def report_ttft(measured: list[dict[str, float]]) -> None:
    direct = statistics.median(times[DIRECT] for times in measured)
    print(f"TTFT p50: direct {direct:.2f} ms, {len(measured)} requests on each side; goal: {TTFT_GOAL_MS} ms added")
    for side in (GATEWAY, PASS_THROUGH):
        added = [times[side] - times[DIRECT] for times in measured]
        low, high = interval(added)
        print(f"  {side} adds {statistics.median(added):.2f} ms [{low:.2f}, {high:.2f}]", flush=True)


def report_kills(landed: list[float], wrong: int, kills: int, streams: int) -> None:
    times = sorted(landed)
    figures = ", ".join(f"p{share} {percentile(times, share / 100):.0f} ms" for share in (50, 90, 99)) if times else "-"
    goal = f"goal p99 {KILL_GOAL_MS:.0f} ms"
    print(f"kill with {streams} streams, patch of the file to the last drafted step: {figures}, {goal}")
    print(f"{len(landed)} of {kills} kills met drafts, {wrong} texts differ", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--vllm", metavar="URL", help="a server with the plugin that runs already")
    args = parser.parse_args()
    with running(args.vllm) as found:
        asyncio.run(measure(found, args.pairs, args.kills, args.streams))
    return 0


if __name__ == "__main__":
    sys.exit(main())
