"""A real browser: the machine's own Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "/usr/bin/chromium"
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Runs until the context ends, and keeps an event loop in this thread for as long."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield started
        finally:
            started.close()
