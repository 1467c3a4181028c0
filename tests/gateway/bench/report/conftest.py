"""A recorded run with known times, its report, and a real browser to look at it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from slipstream_tools.bench.report import write_report

from tests.gateway.bench.report.recorded_run import AGAIN, make_rows, make_summary
from tests.support.browser import chromium


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run at two loads."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    rows = make_rows(concurrency=(1, 8))
    write_report(make_summary(rows), rows, path, command=AGAIN)
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
