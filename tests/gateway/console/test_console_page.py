"""The page in a real browser: live, explained, killed by keyboard, back after a restart, for everybody, and alone."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from slipstream_core.redis.limit_scripts import limits_key
from slipstream_core.settings import AccessSettings, ConformanceSettings

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import chat
from tests.support.polling import eventually
from tests.support.redis_server import RedisServer

MOST_BYTES = 200_000
HOSTILE = "<img src=x onerror=document.title=1> tokens=3"
# The names as the browser draws them, and the points that they are names of.
DRAWN = """async ({ names, points, bounds }) => {
  const { places } = await import("/console/labels.js");
  const { s } = await import("/console/dom.js");
  const picture = document.querySelector("#map").appendChild(s("svg", { viewBox: "0 0 560 330", width: 560 }));
  picture.style.width = "560px";
  const spots = places(names, points, bounds).map((spot, index) => spot && s("text",
    { x: spot.x, y: spot.y, "text-anchor": spot.anchor }, names[index])).filter(Boolean);
  picture.append(...spots);
  const drawn = spots.map((text) => text.getBBox()).map(({ x, y, width, height }) =>
    ({ left: x, right: x + width, top: y + height / 2 - 5, bottom: y + height / 2 + 5 }));
  const marks = points.map(([x, y]) => ({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5, point: true }));
  return [[...marks, ...drawn], spots.length];
}"""

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


def test_limits_of_each_key_and_what_is_used_of_them_are_a_table(
    console: Console, keys: Keys, open_console: OpenConsole, send: Send
) -> None:
    hostile = "<b>big</b> customer"
    keys.run("price", "--input", "0", "--output", "1000")
    admin = keys.create("--admin", "--name", "admin")
    limited = keys.create("--name", hostile, "--requests-per-minute", "1", "--concurrent", "7", "--usd-per-day", "5")
    gone = keys.create("--name", "gone", "--concurrent", "1")
    keys.run("revoke", "gone")
    url = console(access=AccessSettings(keys=keys.path)).url
    assert send(url, 1, headers={"authorization": f"Bearer {limited}"})[0].status_code == 200
    page, seen = open_console(url, state="locked")
    assert page.locator("#keys-box").is_hidden()
    page.fill("#key-value", admin)
    page.get_by_role("button", name="Connect").click()
    table = page.get_by_role("table", name="Limits of each key and their usage")
    row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=hostile, exact=True))
    expect(table.get_by_role("columnheader")).to_have_text(
        ["key", "requests per minute", "tokens per minute", "concurrent", "USD today"], use_inner_text=True
    )
    expect(row.get_by_role("cell")).to_have_text([re.compile("^[01] of 1"), "no limit", "0 of 7", "0.009 of 5"])
    expect(page.locator("#keys-lead")).to_contain_text("of this gateway alone")
    assert table.get_by_role("rowheader").count() == 1  # neither who has no limits nor who was revoked
    figures = httpx.get(
        f"{url}/admin/events", headers={"accept": "application/json", "authorization": f"Bearer {admin}"}, timeout=15.0
    ).text
    assert hostile in figures
    hashes = [key["hash"] for key in json.loads(keys.path.read_text())["keys"]]
    for secret in (*hashes, *(key[-20:] for key in (admin, limited, gone))):
        assert secret not in figures
    assert _violations(page) == []
    assert seen.bytes < MOST_BYTES
    refused = httpx.get(f"{url}/admin/events", headers={"authorization": f"Bearer {limited}"}, timeout=15.0)
    assert refused.status_code == 403
    assert hostile not in refused.text


def test_limits_in_redis_are_those_of_all_gateways(
    console: Console,
    keys: Keys,
    open_console: OpenConsole,
    send: Send,
    tmp_path: Path,
    free_ports: Callable[[int], list[int]],
) -> None:
    key = keys.create("--admin", "--name", "both", "--requests-per-minute", "2000000")
    access = AccessSettings(keys=keys.path)
    redis = RedisServer(tmp_path, free_ports(1)[0])
    try:
        one, other = (console(access=access, redis_url=redis.url) for _ in range(2))
        headers = {"authorization": f"Bearer {key}"}

        def use_up() -> None:
            """As others would, far beyond what is left. What is used decays with time."""
            with redis.client() as client:
                client.hset(limits_key(_id_of(keys.path)), "r", 2e17)

        use_up()
        eventually(lambda: send(other.url, 1, headers=headers)[0].status_code == 429, "the limit in Redis applies")
        page, _ = open_console(one.url, state="locked")
        page.fill("#key-value", key)
        page.get_by_role("button", name="Connect").click()
        expect(page.locator("#keys-lead")).to_contain_text("of all gateways together")
        use_up()
        expect(page.locator("#keys tr")).to_contain_text("of 2,000,000, used up")
    finally:
        redis.stop()


def _id_of(path: Path) -> str:
    return str(json.loads(path.read_text())["keys"][0]["id"])


def test_there_is_no_table_of_keys_without_keys(console: Console, open_console: OpenConsole) -> None:
    page, _ = open_console(console().url)
    expect(page.locator("#foot")).to_contain_text("Slipstream")  # the figures are drawn
    assert page.locator("#keys-box").is_hidden()


def test_the_map_marks_what_a_rule_decides(console: Console, open_console: OpenConsole, send: Send) -> None:
    url = console().url  # its policy decides by rules alone
    send(url, 12)
    page, _ = open_console(url)
    marks = page.locator("#map rect.ruled")
    expect(marks).to_have_count(1)
    assert "speculative by rule, no rule of the policy forbids speculation" in marks.evaluate("it => it.textContent")
    expect(page.get_by_role("img", name="Decided by rule: summarization/")).to_be_visible()
    expect(page.locator("#map-legend")).to_contain_text("decided by rule")
    expect(page.locator("#map-lead")).to_contain_text("by its rules alone")
    expect(page.locator("#map-rows")).to_contain_text("speculative by rule: no rule of the policy")


def test_names_on_the_map_cover_neither_each_other_nor_a_point(console: Console, open_console: OpenConsole) -> None:
    """What has no place is left out; the busiest, which come first, never are."""
    page, _ = open_console(console().url)
    draws = random.Random(5)
    bounds = {"left": 48, "right": 560, "top": 0, "bottom": 300}
    for crowd in (1, 4, 12):
        names = [draws.choice(["code/long", "short_qa/short", "creative_writing/medium"]) for _ in range(crowd)]
        points = [[draws.uniform(300, 400), draws.uniform(20, 60)] for _ in range(crowd)]
        points[-1] = [bounds["right"] - 5, 20]  # its name goes to the left
        boxes, count = page.evaluate(DRAWN, {"names": names, "points": points, "bounds": bounds})
        assert len(boxes) - crowd == count >= min(crowd, 8)
        for one, other in itertools.combinations(boxes, 2):
            if one.get("point") and other.get("point"):
                continue
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
        for one in boxes:
            assert one.get("point") or (bounds["left"] <= one["left"] and one["right"] <= bounds["right"])


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


def test_a_server_without_a_capability_has_a_badge_that_says_which_and_why(
    console: Console, open_console: OpenConsole
) -> None:
    url = console(conformance=ConformanceSettings(enabled=True)).url
    page, seen = open_console(url)
    badge = page.locator("#pools .badge", has_text="no sampled speculation: engine unverified")
    expect(badge).to_have_count(1)
    assert page.locator("#pools td", has_text="unverified").inner_text() == (
        "up, no sampled speculation: engine unverified"
    )
    assert _violations(page) == []
    assert seen.console == []


def test_the_explorer_says_what_would_happen_and_why(console: Console, open_console: OpenConsole) -> None:
    url = console().url
    page, _ = open_console(url)
    page.fill("#request", "Summarize this call for the team")
    page.get_by_role("button", name="Explain").click()
    explained = page.locator("#explained")
    expect(explained.locator(".verdict")).to_contain_text("speculative · speculation pays · γ = 5")
    expect(explained).to_contain_text("summarization/")
    page.fill("#request", '{"model": "acme", "prompt": "Hi", "temperature": -1}')
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
    expect(page.locator("#kill-landing")).to_contain_text("took effect in")
    expect(page.locator("#kill-landing")).to_contain_text("on 1 gateway")
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


def test_two_control_answers_are_no_speed_up(console: Console, open_console: OpenConsole, send: Send) -> None:
    """Their interval would reach from 0 to thousands."""
    url = console().url
    send(url, 4)
    page, _ = open_console(url)
    tile = page.locator(".tile", has_text="live speed-up")
    expect(tile.locator("small")).to_have_text("2 of about 10 answers")
    expect(tile.locator("b")).to_have_text("–")
    expect(page.locator("#speed")).to_contain_text("Not enough answers yet (2 of about 10 answers)")
    expect(page.locator("#speed-rows")).not_to_contain_text("×")
    send(url, 40)
    expect(tile.locator("b")).to_contain_text("×")
    expect(tile.locator("small")).to_have_text(re.compile(r"^\d+\.\d+× to \d+\.\d+×$"))
    saved = page.locator(".tile", has_text="server time saved")
    expect(saved.locator("b")).to_have_text(re.compile(r"^-?[\d.]+ (ms|s|min)$"))
    expect(saved.locator("small")).to_have_text(re.compile(r"^of [\d.]+ (ms|s) \(.* to .*\)$"))


def test_an_unknown_figure_is_not_marked_as_bad(console: Console, open_console: OpenConsole) -> None:
    page, _ = open_console(console().url)
    expect(page.locator(".tile", has_text="live speed-up").locator("b")).to_have_text("–")
    assert page.locator(".tile.bad").count() == 0


def test_an_error_of_the_client_is_refused_not_failed(console: Console, open_console: OpenConsole) -> None:
    """One that the server finds, after the decision; a failure of the server is marked."""
    url = console().url
    assert _answer_to(url, "status=400") == 400
    page, _ = open_console(url)
    tile = page.locator(".tile", has_text="failed")
    expect(tile).to_contain_text("1 refused for an error of the client")
    expect(tile.locator("b")).to_have_text("0")
    assert page.locator(".tile.bad").count() == 0
    assert _answer_to(url, "status=500") >= 500
    expect(page.locator(".tile.bad")).to_contain_text("failed")


def _answer_to(url: str, script: str) -> int:
    return httpx.post(f"{url}/v1/chat/completions", json=chat(script), timeout=15.0).status_code


def test_terms_are_explained_and_each_has_one_meaning(console: Console, open_console: OpenConsole, send: Send) -> None:
    url = console().url
    send(url, 6)
    page, _ = open_console(url)
    page.get_by_text("Terms: arm, control").click()
    for term in ("arm", "control", "γ, draft length", "β, acceptance", "draft tokens accepted"):
        expect(page.locator(".terms dt", has_text=re.compile(f"^{term}$"))).to_be_visible()
    assert _violations(page) == []
    words = page.locator("main").inner_text().replace("acceptance β", "").replace("β, acceptance", "")
    assert "acceptance" not in words.lower()


def test_the_class_table_fits_a_phone(console: Console, open_console: OpenConsole, send: Send) -> None:
    url = console().url
    send(url, 12)
    page, _ = open_console(url, viewport={"width": 390, "height": 844})
    expect(page.locator("#classes tr td").first).to_have_text("12")
    for region in page.get_by_role("region").all():
        if region.is_visible() and region.locator("table").count():
            name, hidden = region.evaluate("it => [it.ariaLabel, it.scrollWidth - it.clientWidth]")
            assert hidden <= 0, name


def test_the_root_leads_a_browser_to_the_console(console: Console, browser: Any) -> None:
    url = console().url
    page = browser.new_page()
    page.goto(url)
    assert page.url == f"{url}/console"
    page.close()
    answer = httpx.get(url, timeout=15.0)
    assert answer.status_code == 404
    assert "the console is at /console" in answer.json()["error"]["message"]


def _violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{entry['id']}: {node['html']}" for entry in found for node in entry["nodes"]]
