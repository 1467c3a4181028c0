"""The console on a real system under the mixed workload: weight, first paint, and pictures for README.

A tenth of the requests that would speculate is held back, so that the comparison has something to show in minutes.
First paint is Chromium's own (`PerformancePaintTiming`), the page loaded anew each time with an empty cache.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from playwright.sync_api import Browser
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_tools.bench.requests import embedded_requests

from tests.benchmarks.harness import Option, Report, benchmark, percentiles
from tests.benchmarks.systems import MODEL, running_system
from tests.support.browser import chromium

CLIENTS = 3
WIDTHS = {"light": 1280, "dark": 1280}
EXPLORED = (
    "Write a call summary with the reason for contact, what was agreed and the next steps.\n\n"
    "Agent: Good morning, how can I help? Customer: My order 48213, a desk lamp, has not arrived yet."
)


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
    with ThreadPoolExecutor(max_workers=1) as pool:
        sending = pool.submit(lambda: asyncio.run(_send_all(url, bodies, over)))
        try:
            yield
        finally:
            over.set()
        sending.result()


async def _send_all(url: str, bodies: Sequence[Any], over: threading.Event) -> None:
    endless = itertools.cycle(bodies)

    async def client(http: httpx.AsyncClient) -> None:
        while not over.is_set():
            body = {**next(endless), "model": MODEL, "stream": True, "temperature": 0}
            answer = await http.post("/v1/chat/completions", json=body)
            answer.raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))


def weight(browser: Browser, url: str) -> tuple[int, int]:
    """Bytes and requests of the page, its stream apart."""
    page, sizes = browser.new_page(), []
    page.on("response", lambda answer: sizes.append((answer.url, answer.headers.get("content-length", "0"))))
    page.goto(f"{url}/console")
    page.wait_for_selector("#link[data-state=live]")
    page.close()
    return sum(int(size) for address, size in sizes if "/admin/" not in address), len(sizes) - 1


def first_paint_ms(browser: Browser, url: str) -> tuple[float, float]:
    """First contentful paint, and the time until the figures are on the page."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/console")
    page.wait_for_selector("#link[data-state=live]")
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    live = page.evaluate("performance.now()")
    context.close()
    return float(first), float(live)


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


def measure(args: argparse.Namespace, report: Report) -> None:
    with _manifest() as manifest, running_system(manifest) as system, chromium() as browser:
        with _traffic(system.gateway_url, args.seed):
            time.sleep(args.seconds)
            if args.screenshots:
                _screenshots(browser, system.gateway_url, Path(args.screenshots))
        size, requests = weight(browser, system.gateway_url)
        paints, figures = zip(*(first_paint_ms(browser, system.gateway_url) for _ in range(args.loads)), strict=True)
    report.row("page with all its files: goal 200 kB", kb=size / 1000, requests=requests)
    report.row("first contentful paint: goal 1000 ms", **percentiles(paints, "ms", 50), figures_ms=median(figures))


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        seconds=Option(120.0, 1.0, "of traffic before anything is measured"),
        seed=Option(2_026, 2_026, "of the workload"),
        loads=Option(10, 1, "loads of the page"),
        screenshots=Option("", "", "the folder for console-light.png and console-dark.png"),
    )
