"""The page in a real browser: live, explained, killed by keyboard, back after a restart, for everybody, and alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

MOST_BYTES = 200_000
HOSTILE = "<img src=x onerror=document.title=1> tokens=3"

Console = Callable[..., Any]
Send = Callable[..., list[httpx.Response]]
OpenConsole = Callable[..., tuple[Page, Any]]


def test_numbers_change_while_requests_run(console: Console, open_console: OpenConsole, send: Send) -> None:
    url = console().url
    page, seen = open_console(url)
    expect(page.locator("#classes")).to_contain_text("No requests")
    answers = send(url, 40)
    arms = [answer.headers["x-slipstream-arm"] for answer in answers]
    name = answers[0].headers["x-slipstream-class"]
    row = page.locator("#classes tr", has_text=name)
    expect(row.locator("td").nth(0)).to_have_text("40")
    assert row.locator("td").nth(1).inner_text() == str(arms.count("speculative"))
    assert row.locator("td").nth(3).inner_text() == str(arms.count("control"))
    # The scripted server says of each whole answer that 2 of 3 draft tokens were accepted.
    expect(page.locator("#accept-rows tr", has_text=name).locator("td").first).to_have_text("67 %")
    expect(page.locator("#speed-rows tr", has_text="all classes")).to_contain_text("×")
    expect(page.locator("#times-rows")).to_contain_text("E2E")
    assert seen.console == []


def test_the_page_asks_its_own_gateway_alone_and_is_light(console: Console, open_console: OpenConsole) -> None:
    url = console().url
    page, seen = open_console(url)
    page.wait_for_selector("#map svg")
    assert {address.removeprefix(url).split("/")[1] for address in seen.requests} == {"console", "admin"}
    assert 10_000 < seen.bytes < MOST_BYTES
    policy = httpx.get(f"{url}/console").headers["content-security-policy"]
    assert "'unsafe" not in policy
    assert "script-src 'self'" in policy


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360), ("dark", 360)])
def test_nobody_is_kept_out(console: Console, open_console: OpenConsole, send: Send, scheme: str, width: int) -> None:
    """No violation that axe knows, with figures, an explanation and a dialog; nothing to scroll sideways."""
    url = console().url
    send(url, 12)
    page, _ = open_console(url, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.wait_for_selector("#accept svg")
    page.fill("#request", "Summarize this call for the team")
    page.get_by_role("button", name="Explain").click()
    page.wait_for_selector("#explained .verdict")
    assert _violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Stop speculation…").click()
    assert _violations(page) == []


def test_the_explorer_says_what_would_happen_and_why(console: Console, open_console: OpenConsole) -> None:
    url = console().url
    page, _ = open_console(url)
    page.fill("#request", "Summarize this call for the team")
    page.get_by_role("button", name="Explain").click()
    explained = page.locator("#explained")
    expect(explained.locator(".verdict")).to_contain_text("speculative · speculation pays · γ = 5")
    expect(explained).to_contain_text("summarization/")
    page.fill("#request", '{"model": "acme", "prompt": "Hi", "temperature": 2.5}')
    page.get_by_role("button", name="Explain").click()
    expect(explained.locator(".problem")).to_contain_text("temperature")
    page.fill("#request", '{"model": ')
    page.get_by_role("button", name="Explain").click()
    expect(explained.locator(".problem")).to_contain_text("This is not JSON")


def test_speculation_is_stopped_by_keyboard_alone(console: Console, open_console: OpenConsole, send: Send) -> None:
    url = console().url
    page, _ = open_console(url)
    page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "kill-open":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#kill-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#kill-dialog")).to_be_hidden()
    assert {answer.headers["x-slipstream-reason"] for answer in send(url, 8)} >= {"speculation_pays"}
    page.keyboard.press("Enter")  # the focus is back where it was
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    page.keyboard.type("too many <b>errors</b>")
    page.keyboard.press("Enter")
    expect(page.locator("#kill-landing")).to_contain_text("landed in")
    expect(page.locator("#kill-landing")).to_contain_text("on 1 worker")
    assert {answer.headers["x-slipstream-reason"] for answer in send(url, 8)} == {"kill_switch"}
    expect(page.locator("#kill-state")).to_contain_text("Stopped by Ada")
    expect(page.locator("#history li").first).to_contain_text("too many <b>errors</b>")
    page.get_by_role("button", name="Allow speculation again…").click()
    page.get_by_role("button", name="Allow speculation", exact=True).click()
    expect(page.locator("#kill-state")).to_have_text("Speculation is on, where it pays.")
    assert {answer.headers["x-slipstream-reason"] for answer in send(url, 8)} >= {"speculation_pays"}


def test_it_says_that_it_is_disconnected_and_comes_back(
    console: Console, open_console: OpenConsole, send: Send
) -> None:
    first = console()
    page, seen = open_console(first.url)
    first.stop()
    expect(page.locator("#alert")).to_contain_text("Disconnected")
    expect(page.locator("#link-text")).to_have_text("Disconnected")
    second = console(port=first.port)
    expect(page.locator("#link-text")).to_have_text("Live")
    expect(page.locator("#alert")).to_be_hidden()
    send(second.url, 3)
    expect(page.locator("#classes tr td").first).to_have_text("3")
    assert all("ERR_" in line for line in seen.console)  # the browser's own words for a refused connection


def test_a_pause_keeps_the_figures_still(console: Console, open_console: OpenConsole, send: Send) -> None:
    url = console().url
    page, _ = open_console(url)
    page.get_by_role("button", name="Pause").click()
    send(url, 5)
    until = time.monotonic() + 10.0
    while '"requests":[' not in httpx.get(f"{url}/admin/events", headers={"accept": "application/json"}).text:
        assert time.monotonic() < until
    expect(page.locator("#link-text")).to_have_text("Paused")
    expect(page.locator("#classes")).to_contain_text("No requests")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#classes tr td").first).to_have_text("5")


def _violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{entry['id']}: {node['html']}" for entry in found for node in entry["nodes"]]
