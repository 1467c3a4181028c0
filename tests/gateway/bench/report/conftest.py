"""A recorded run with known times, its report, and a real browser to look at it with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from slipstream_tools.bench.report import write_report

from tests.gateway.bench.report.recorded_run import AGAIN, make_rows, make_summary
from tests.support import browser as pages


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run at two loads."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    rows = make_rows(concurrency=(1, 8))
    write_report(make_summary(rows), rows, path, command=AGAIN)
    return path


OpenPage = Callable[..., tuple[Page, pages.Seen]]


@pytest.fixture
def open_page(browser: Browser, exit_stack: ExitStack) -> OpenPage:
    """Opens a file in a context of its own, with whatever `new_context` takes."""
    return lambda path, **options: pages.open_page(browser, exit_stack, path.as_uri(), **options)
