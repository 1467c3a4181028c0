"""A recorded run with known times, its report, and a real browser to look at it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from slipstream_tools.bench.cases import Prices
from slipstream_tools.bench.report import write_report
from slipstream_tools.bench.results import Header, Results, Row, Settings
from slipstream_tools.bench.summarize import summarize
from slipstream_tools.bench.summary import Summary, Thresholds

from tests.support.browser import chromium

CLASSES = ("summary", "label")
# By class: output tokens, seconds per token when plain and when speculative, share of accepted draft tokens.
WORK = {"summary": (200, 0.010, 0.005, 0.9), "label": (5, 0.010, 0.016, 0.25)}
TTFT_S = {"plain": 0.050, "speculative": 0.060, "routed": 0.050}
DRAFT_LENGTH = 4

MakeRows = Callable[..., list[Row]]
MakeSummary = Callable[..., Summary]


@pytest.fixture(scope="session")
def make_rows() -> MakeRows:
    """Rows of requests that alternate between classes; the routed answer takes the better arm."""

    def make(
        *, requests: int = 80, classes: Sequence[str] = CLASSES, modes: Sequence[str] = tuple(TTFT_S),
        concurrency: Sequence[int] = (1,), prompt: str = "Hello", error: str | None = None,
    ) -> list[Row]:  # fmt: skip
        return [
            _row(index, classes[index % len(classes)], list(WORK)[index % 2], mode, level, prompt, error)
            for level in concurrency
            for index in range(requests)
            for mode in modes
        ]

    return make


def _row(index: int, name: str, kind: str, mode: str, level: int, prompt: str, error: str | None) -> Row:
    tokens, plain_s, speculative_s, accepted = WORK[kind]
    speculates = mode == "speculative" or (mode == "routed" and kind == "summary")
    tpot_s = (speculative_s if speculates else plain_s) * level
    ttft_s = TTFT_S["speculative" if speculates else "plain"]
    steps = 100
    return Row(
        index=index, round=0, mode=mode, label=name, concurrency=level, phase="measure",
        request={"model": "m", "messages": [{"role": "user", "content": prompt}], "temperature": 0},
        arm="speculative" if speculates else "plain", request_class=f"{kind}/long",
        draft_length=DRAFT_LENGTH if speculates else 0, status=None if error else 200, error=error,
        saving_ms=100.0 if mode == "routed" and kind == "summary" else -10.0 if mode == "routed" else None,
        ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=ttft_s + (tokens - 1) * tpot_s + index * 1e-6,
        output_tokens=tokens, drafted=400 if speculates else 0, accepted=int(400 * accepted) if speculates else 0,
        steps=steps, rejected_at=(10, 20, 5, 5) if speculates else (), text_hash="same",
        checks={"label": 1.0}, passed=True, started_s=index * 10.0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def make_summary() -> MakeSummary:
    def make(rows: list[Row], *, price: float | None = 2.0, source: str = "calls.jsonl") -> Summary:
        settings = Settings(
            requests=source, digest="0" * 16, system="pair.yaml@0123456789ab", drafts=(), rounds=1, warmup=1,
            modes=tuple(dict.fromkeys(row.mode for row in rows)) or ("plain",), seed=3, timeout_s=60.0, model=None,
            concurrency=tuple(dict.fromkeys(row.concurrency for row in rows)) or (1,), limit=None,
        )  # fmt: skip
        prices = Prices(plain=price, speculative=price)
        return summarize(Results(Header(settings=settings), rows, 1), thresholds=Thresholds(), prices=prices)

    return make


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, make_rows: MakeRows, make_summary: MakeSummary) -> Path:
    """The page of a run at two loads."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    rows = make_rows(concurrency=(1, 8))
    write_report(make_summary(rows), rows, path)
    return path


@pytest.fixture(scope="module")  # it keeps an event loop in this thread while it is open, which other tests need free
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


class Seen:
    """What a page did while it was open."""

    def __init__(self, page: Page) -> None:
        self.console: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))


OpenPage = Callable[..., tuple[Page, Seen]]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a file in a context of its own, with whatever `new_context` takes."""
    contexts = []

    def open_(path: Path, **options: Any) -> tuple[Page, Seen]:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        seen = Seen(page)
        page.goto(path.as_uri())
        return page, seen

    yield open_
    for context in contexts:
        context.close()
