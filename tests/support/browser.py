"""A real browser: the machine's own Chromium, and its pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, Response, sync_playwright

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


class Seen:
    """What a page did while it was open. Its errors are in `console`."""

    def __init__(self, page: Page) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.bytes = 0
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("response", self._weigh)
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def _weigh(self, response: Response) -> None:
        self.bytes += int(response.headers.get("content-length", 0))


def open_page(browser: Browser, stack: ExitStack, url: str, **options: Any) -> tuple[Page, Seen]:
    """Opens `url` in a context of its own, with `options` of `new_context`; `stack` closes it."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    stack.callback(context.close)
    page = context.new_page()
    seen = Seen(page)
    page.goto(url)
    return page, seen
