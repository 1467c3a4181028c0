"""What happens to the gateway while a stream looks for a server to go on at: kills, manifests, clients that leave."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from slipstream_core.settings import Deadlines, Limits

from tests.gateway.pair_manifest import chat, manifest_text
from tests.gateway.serving.resuming import REST, SCRIPT, TEXT, Reading, committed, hold, release
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports

KILL = ", killSwitch: true"
SPECULATE = {"x-slipstream-mode": "speculative"}
Make = Callable[..., Any]


@contextlib.contextmanager
def stream(served: Any, body: dict[str, Any], **headers: str) -> Iterator[Reading]:
    """A stream that has begun."""
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_S) as response:
        assert response.headers["x-slipstream-resumable"] == "true"
        found = Reading(response.iter_lines())
        found.begin()
        yield found


def swap(served: Any, text: str, reason: str) -> None:
    """Writes a manifest by which requests are decided for `reason`, and waits until they are."""
    body = {"model": "acme", "messages": [{"role": "user", "content": "x"}]}
    served.manifest.write_text(text)
    eventually(
        lambda: httpx.post(f"{served.url}/v1/route", json=body, timeout=PATIENCE_S).json().get("reason") == reason,
        reason,
    )


def swap_away(served: Any, text: str) -> None:
    """Writes a manifest with another pair in the place of the one for `acme`, and waits until nobody serves that."""
    other = text.replace("name: pair", "name: other").replace("pair: pair", "pair: other")
    served.manifest.write_text(other.replace("model: acme\n", "model: other\n", 1))
    body = {"model": "acme", "messages": [{"role": "user", "content": "x"}]}
    eventually(
        lambda: httpx.post(f"{served.url}/v1/route", json=body, timeout=PATIENCE_S).status_code == 404, "the other pair"
    )


def let_go(served: Any) -> None:
    """Waits until nothing runs, and nothing holds a place."""
    for name in ("slipstream_requests_in_flight", "slipstream_admission_in_flight"):
        eventually(lambda name=name: served.metric(name) == 0, name)


@pytest.mark.parametrize(
    ("policy", "keeps_its_draft", "reason"),
    [
        (KILL, True, "kill_switch"),
        (KILL, False, "kill_switch"),
        ("", False, "no_draft"),
    ],
)
def test_stream_that_is_killed_or_loses_its_draft_before_it_goes_on_goes_on_plainly(
    gateway: Make, openai_server: Make, policy: str, keeps_its_draft: bool, reason: str
) -> None:
    """No plain server is up at first, so that it asks one that drafts, and would go on to draft at the one left."""
    drafting, plain = [openai_server() for _ in range(3)], openai_server(*lasting_ports(1))
    urls = [server.url for server in drafting]
    served = gateway(manifest_text([plain.url], urls, policy=TEXT))
    with stream(served, chat(SCRIPT, stream=True, temperature=0.8), **SPECULATE) as reading:
        plain.stop()
        held, [left] = hold(drafting)
        plain = openai_server(plain.port)
        swap(served, manifest_text([plain.url], urls if keeps_its_draft else None, policy=f"{TEXT}{policy}"), reason)
        release(held)
        text, error, done = reading.rest()
    assert (error, done) == (None, True)
    assert text == committed(plain) + REST
    assert not left.requests
    assert served.metric("slipstream_resumed_total", result="resumed") == 1
    let_go(served)


def test_stream_goes_on_at_a_server_of_the_manifest_that_came_meanwhile_and_not_at_one_that_was_removed(
    gateway: Make, openai_server: Make
) -> None:
    before, added = [openai_server() for _ in range(3)], openai_server()
    served = gateway(manifest_text([server.url for server in before], policy=TEXT))
    with stream(served, chat(SCRIPT, stream=True)) as reading:
        held, [removed] = hold(before)
        swap(served, manifest_text([held.url, added.url], policy=f"{TEXT}, enabled: false"), "policy_disabled")
        release(held)
        text, error, done = reading.rest()
    assert (text, error, done) == (committed(added) + REST, None, True)
    assert not removed.requests
    let_go(served)


def test_stream_of_a_pair_that_was_removed_goes_on_at_a_server_that_is_left_of_it(
    gateway: Make, openai_server: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slipstream_gateway")
    servers, other = [openai_server() for _ in range(3)], openai_server()
    served = gateway(manifest_text([server.url for server in servers], policy=TEXT))
    with stream(served, chat(SCRIPT, stream=True)) as reading:
        held, [left] = hold(servers)
        swap_away(served, manifest_text([other.url]))
        release(held)
        text, error, done = reading.rest()
    assert (text, error, done) == (committed(left) + REST, None, True)
    for server in servers:  # with the stream its pair's last user is gone
        eventually(lambda server=server: f"{server.url} is no longer used" in caplog.text, server.url)


def test_stream_of_a_pair_that_was_removed_with_its_last_server_ends_with_an_error(
    gateway: Make, openai_server: Make
) -> None:
    servers, other = [openai_server() for _ in range(2)], openai_server()
    deadlines = Deadlines(connect_s=PATIENCE_S, resume_s=1.0)
    served = gateway(manifest_text([server.url for server in servers], policy=TEXT), deadlines=deadlines)
    with stream(served, chat(SCRIPT, stream=True)) as reading:
        held, _ = hold(servers)
        swap_away(served, manifest_text([other.url]))
        release(held)
        text, error, done = reading.rest()
    assert text == committed(held)
    assert (error["code"], done) == ("stream_interrupted", False)
    assert not other.requests
    assert served.metric("slipstream_resumed_total", result="no_server") == 1
    let_go(served)


def test_client_that_leaves_before_its_stream_goes_on_gives_back_its_place_and_ends_the_work(
    gateway: Make, openai_server: Make
) -> None:
    servers = [openai_server() for _ in range(3)]
    limits = Limits(max_in_flight=1, max_queued=0)
    served = gateway(manifest_text([server.url for server in servers], policy=TEXT), limits=limits)
    with stream(served, chat(SCRIPT, stream=True)):
        held, [left] = hold(servers)
    assert held.cancelled.wait(PATIENCE_S)
    let_go(served)
    held.slow_s = 0.0
    assert httpx.post(f"{served.url}/v1/chat/completions", json=chat("tokens=1"), timeout=PATIENCE_S).status_code == 200
    assert served.metric("slipstream_requests_total", status="cancelled") == 1
    assert served.metric("slipstream_resumed_total") == 0
    assert len(held.requests) + len(left.requests) == 2  # nobody goes on with it behind the client's back


def test_client_that_leaves_while_nobody_is_there_to_go_on_at_holds_no_server_and_no_place(
    gateway: Make, openai_server: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It has taken part in two tables by then: that of its beginning, and one that it looked for servers in."""
    caplog.set_level(logging.INFO, logger="slipstream_gateway")
    servers, last = [openai_server() for _ in range(2)], openai_server()
    deadlines = Deadlines(connect_s=PATIENCE_S, resume_s=600.0)
    limits = Limits(max_in_flight=1, max_queued=0)
    served = gateway(manifest_text([server.url for server in servers], policy=TEXT), deadlines=deadlines, limits=limits)
    with stream(served, chat(SCRIPT, stream=True)):
        held, _ = hold(servers)
        swap(served, manifest_text([held.url], policy=f"{TEXT}, enabled: false"), "policy_disabled")
        release(held)
        tried = served.metric("slipstream_retries_total", result="allowed")
        eventually(lambda: served.metric("slipstream_retries_total", result="allowed") > tried + 1, "further attempts")
    let_go(served)
    assert served.metric("slipstream_requests_total", status="cancelled") == 1
    swap(served, manifest_text([last.url], policy=f"{TEXT}, killSwitch: true"), "kill_switch")
    for server in servers:
        eventually(lambda server=server: f"{server.url} is no longer used" in caplog.text, server.url)
    assert httpx.post(f"{served.url}/v1/chat/completions", json=chat("tokens=1"), timeout=PATIENCE_S).status_code == 200
