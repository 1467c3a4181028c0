"""A gateway whose speculation shows in the console, and a real browser to look at it with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.browser import Seen, open_page
from tests.support.draws import by_turns, chosen_draws

HOLD_BACK_SHARE = 0.5
# By rules alone, and nothing speaks against speculation: whoever is not held back speculates.
POLICY = (
    f", decision: rules, minOutputTokens: 0, maxRareTokenShare: 1, minConfidence: 0, holdBackShare: {HOLD_BACK_SHARE}"
)
WAIT_MS = 15_000
ANSWER_S = 0.03
TURNS = (chosen_draws(), chosen_draws(hold_back=0.0))
"""One request speculates, the next one is held back."""

expect.set_options(timeout=WAIT_MS)  # Playwright's own five seconds are short on a busy machine


@pytest.fixture(scope="session")
def policy() -> str:
    """The rest of a policy under which half of all requests speculate and half are held back."""
    return POLICY


@pytest.fixture
def console(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a gateway with a server for each arm. Their answers take a time of their own, so that those of the arms
    can be compared on a busy machine."""

    def start(**options: Any) -> Any:
        servers = [openai_server(), openai_server()]
        for server in servers:
            server.slow_s = ANSWER_S
        text = manifest_text([servers[0].url], [servers[1].url], policy=POLICY)
        return gateway(text, draw=by_turns(*TURNS), **options)

    return start


@pytest.fixture(scope="module")
def untouched(
    tmp_path_factory: pytest.TempPathFactory, run_gateway: Callable[..., contextlib.AbstractContextManager[Any]]
) -> Iterator[Any]:
    """A gateway for tests that change nothing."""
    server = OpenAiServer()
    path = tmp_path_factory.mktemp("untouched") / "pair.yaml"
    with run_gateway(path, manifest_text([server.url], [server.url], policy=POLICY), draw=by_turns(*TURNS)) as started:
        yield started
    server.stop()


@pytest.fixture
def send() -> Callable[..., list[httpx.Response]]:
    """Sends that many requests through a gateway, one after the other."""

    def requests(url: str, count: int, *, headers: dict[str, str] | None = None) -> list[httpx.Response]:
        with httpx.Client(base_url=url, timeout=15.0, headers=headers) as http:
            body = chat("Summarize this call for the team, please. tokens=9")
            return [http.post("/v1/chat/completions", json=body) for _ in range(count)]

    return requests


OpenConsole = Callable[..., tuple[Page, Seen]]


@pytest.fixture
def open_console(browser: Browser, exit_stack: contextlib.ExitStack) -> OpenConsole:
    """Opens a gateway's console in a context of its own and waits for figures."""

    def open_(url: str, *, state: str = "live", **options: Any) -> tuple[Page, Seen]:
        page, seen = open_page(browser, exit_stack, f"{url}/console", **options)
        page.set_default_timeout(WAIT_MS)
        page.wait_for_selector(f"#link[data-state={state}]")
        return page, seen

    return open_
