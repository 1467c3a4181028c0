"""The console on a real system under the mixed workload: weight, first paint, kill switch, fifty viewers.

    python -m tests.benchmarks.console [--seconds 120] [--screenshots docs/images]

A tenth of what would speculate is held back, so that the comparison has something to show in minutes. First paint is
Chromium's own (`PerformancePaintTiming`), the page loaded anew each time with an empty cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, sync_playwright
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.types import Arm, Decision, Reason
from slipstream_gateway.console.recent_traffic import RecentTraffic
from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.upstreams.base import Usage
from slipstream_tools.bench.requests import embedded_requests

from tests.benchmarks.system import MODEL, running_system

CHROMIUM = "/usr/bin/chromium"
LOADS = 10
VIEWERS = 50
VIEWED_S = 10.0
CLIENTS = 3
WIDTHS = {"light": 1280, "dark": 1280}
EXPLORED = (
    "Write a call summary with the reason for contact, what was agreed and the next steps.\n\n"
    "Agent: Good morning, how can I help? Customer: My order 48213, a desk lamp, has not arrived yet."
)


def main() -> None:
    args = _arguments()
    print(f"{recording_us():.2f} µs of CPU per request for the recorder")
    with _manifest() as manifest, running_system(manifest) as system, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with _traffic(system.gateway_url, args.seed):
            time.sleep(args.seconds)
            if args.screenshots is not None:
                _screenshots(browser, system.gateway_url, args.screenshots)
        print(_weight(browser, system.gateway_url))
        print(_first_paint(browser, system.gateway_url))
        browser.close()
        print(_kill(system.gateway_url))
        with ThreadPoolExecutor() as threads:  # Playwright's event loop runs in this one
            print(threads.submit(lambda: asyncio.run(_viewers(system.gateway_url))).result())


def recording_us(rounds: int = 100_000) -> float:
    """What a finished request pays for the console, in microseconds of this process's CPU."""
    decision = Decision(
        arm=Arm.SPECULATIVE, reason=Reason.SPECULATION_PAYS, request_class="summarization/long", draft_length=4,
        detail="", numbers={},
    )  # fmt: skip
    usage = Usage(prompt_tokens=80, output_tokens=200, drafted=300, accepted=150, steps=60, rejected_at=(20, 10, 5, 5))
    outcome = Outcome(
        pair="p", model="m", decision=decision, status="ok", e2e_s=1.0, ttft_s=0.1, tpot_s=0.005, usage=usage
    )
    recorder = RecentTraffic()
    began = time.process_time()
    for _ in range(rounds):
        recorder.record(outcome)
    return (time.process_time() - began) / rounds * 1e6


@contextmanager
def _manifest() -> Iterator[Path]:
    """The embedded pair with more of it held back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embedded.yaml"
        path.write_text(EMBEDDED_MANIFEST.read_text() + "  holdBackShare: 0.1\n")
        yield path


@contextmanager
def _traffic(url: str, seed: int) -> Iterator[None]:
    """The mixed workload, streamed by a few clients, for as long as the context lasts."""
    bodies = [line.body for line in embedded_requests(f"embedded:400:{seed}").requests]
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_send_all(url, bodies, over)))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def _send_all(url: str, bodies: Sequence[Any], over: threading.Event) -> None:
    endless = itertools.cycle(bodies)

    async def client(http: httpx.AsyncClient) -> None:
        while not over.is_set():
            body = {**next(endless), "model": MODEL, "stream": True, "temperature": 0}
            answer = await http.post("/v1/chat/completions", json=body)
            answer.raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))


def _weight(browser: Browser, url: str) -> str:
    """All bytes of the page, its stream apart."""
    page, sizes = browser.new_page(), []
    page.on("response", lambda answer: sizes.append((answer.url, answer.headers.get("content-length", "0"))))
    page.goto(f"{url}/console")
    page.wait_for_selector("#link[data-state=live]")
    total = sum(int(size) for address, size in sizes if "/admin/" not in address)
    page.close()
    return f"page with all its files: {total / 1000:.1f} kB in {len(sizes) - 1} requests (goal: ≤ 200 kB)"


def _first_paint(browser: Browser, url: str) -> str:
    paints = []
    for _ in range(LOADS):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}/console")
        page.wait_for_selector("#link[data-state=live]")
        first = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        live = "performance.now()"
        paints.append((page.evaluate(first), page.evaluate(live)))
        context.close()
    middle, worst = statistics.median(p for p, _ in paints), max(p for p, _ in paints)
    figures = statistics.median(live for _, live in paints)
    return (
        f"first contentful paint: {middle:.0f} ms (worst of {LOADS}: {worst:.0f} ms; goal: ≤ 1000 ms), "
        f"figures on the page after {figures:.0f} ms"
    )


def _screenshots(browser: Browser, url: str, folder: Path) -> None:
    for scheme, width in WIDTHS.items():
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(f"{url}/console")
        page.wait_for_selector("#link[data-state=live]")
        page.fill("#request", EXPLORED)
        page.get_by_role("button", name="Explain").click()
        page.wait_for_selector("#explained .verdict")
        page.screenshot(path=folder / f"console-{scheme}.png", full_page=True)
        page.close()


def _kill(url: str) -> str:
    """How long a kill takes to land, by the gateway's own clock."""
    headers = {"x-slipstream-console": "1"}
    landed = []
    with httpx.Client(base_url=url, timeout=10.0, headers=headers) as http:
        for _ in range(LOADS):
            for method in ("POST", "DELETE"):
                answer = http.request(method, "/admin/kills/embedded", json={"by": "the benchmark"})
                answer.raise_for_status()
                landed.append(answer.json()["landed_s"])
    return f"kill switch: landed after {1e3 * statistics.median(landed):.1f} ms (worst {1e3 * max(landed):.1f} ms)"


async def _viewers(url: str) -> str:
    """Events that each of many viewers got, and the gateway's time of the first byte for a model list meanwhile."""
    counts = [0] * VIEWERS

    async def view(http: httpx.AsyncClient, index: int) -> None:
        async with http.stream("GET", "/admin/events") as answer:
            async for line in answer.aiter_lines():
                counts[index] += line.startswith("event: ")

    limits = httpx.Limits(max_connections=VIEWERS + 10)
    async with httpx.AsyncClient(base_url=url, timeout=30.0, limits=limits) as http:
        quiet = await _ping(http, 50)
        tasks = [asyncio.create_task(view(http, index)) for index in range(VIEWERS)]
        busy = await _ping(http, round(VIEWED_S / 0.1))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return (
        f"{VIEWERS} viewers got {min(counts)} to {max(counts)} events in about {VIEWED_S:.0f} s; GET /v1/models takes "
        f"{busy:.1f} ms at the 95th percentile meanwhile, {quiet:.1f} ms without viewers"
    )


async def _ping(http: httpx.AsyncClient, times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        (await http.get("/v1/models")).raise_for_status()
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.1)
    return 1e3 * statistics.quantiles(took, n=20)[-1]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of traffic before anything is measured")
    parser.add_argument("--seed", type=int, default=2_026, help="of the workload")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="write console-light.png, console-dark.png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
