"""The checks of a running gateway, with servers that cannot be checked and servers that come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
from slipstream_core.settings import ConformanceSettings, HealthSettings
from slipstream_gateway.lossless.server_checks import AT_ONCE

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports

ON = ConformanceSettings(enabled=True, probe_s=0.2)
WISH = {"x-slipstream-mode": "speculative"}
Make = Callable[..., Any]


def _reason(gateway: Any, body: dict[str, Any]) -> str:
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=WISH, timeout=PATIENCE_S)
    assert answer.status_code == 200
    return str(answer.headers["x-slipstream-reason"])


def _conformance(gateway: Any) -> list[dict[str, Any]]:
    [pair] = httpx.get(f"{gateway.url}/v1/evidence", timeout=PATIENCE_S).json()["data"]
    return list(pair["conformance"])


def test_nothing_speculates_before_the_first_check_and_plain_decoding_waits_for_none(
    gateway: Make, openai_server: Make
) -> None:
    plain, speculative = openai_server(), openai_server()
    speculative.slow_s = 60.0  # a check that takes long
    running = gateway(manifest_text([plain.url], [speculative.url]), conformance=ON)
    assert httpx.get(f"{running.url}/health/ready", timeout=PATIENCE_S).status_code == 200
    for temperature in (0, 0.8):
        assert _reason(running, chat("tokens=2", temperature=temperature)) == "engine_unverified"
    assert _conformance(running)[0]["checked_s"] is None


def _outstanding(gateway: Any) -> dict[str, int]:
    """The requests in flight at each server, by arm."""
    state = httpx.get(f"{gateway.url}/admin/events", headers={"accept": "application/json"}, timeout=PATIENCE_S).json()
    return {seat["arm"]: seat["outstanding"] for seat in state["pools"]}


def test_each_probe_counts_in_the_load_of_its_server(gateway: Make, openai_server: Make) -> None:
    """Else the times of requests beside a check would be learned as those of an idle server. One sampled probe runs
    beside the greedy ones."""
    plain, speculative = openai_server(), openai_server()
    speculative.slow_s = PATIENCE_S
    running = gateway(manifest_text([plain.url], [speculative.url]), conformance=ON)
    eventually(lambda: _outstanding(running) == {"plain": 0, "speculative": AT_ONCE + 1}, "probes at one server")
    speculative.slow_s = 0.0
    other = gateway(manifest_text([plain.url], [speculative.url]), conformance=ON)
    eventually(lambda: _conformance(other)[0]["checked_s"] is not None, "a check")
    assert set(_outstanding(other).values()) == {0}


def test_a_slow_server_is_checked_as_well(gateway: Make, openai_server: Make) -> None:
    """The first check takes longer than it may."""
    plain, speculative = openai_server(), openai_server()
    speculative.slow_s = 0.25
    settings = msgspec.structs.replace(ON, timeout_s=0.2)
    running = gateway(manifest_text([plain.url], [speculative.url]), conformance=settings)
    eventually(lambda: _conformance(running)[0]["checked_s"] is not None)
    assert _reason(running, chat("tokens=2", temperature=0)) == "client_asked"


def test_greedy_speculation_begins_with_a_check_and_sampled_with_one_that_passed(
    gateway: Make, openai_server: Make
) -> None:
    """The scripted servers give no token ids, so that no check of sampled answers ever passes."""
    plain, speculative = openai_server(), openai_server()
    running = gateway(manifest_text([plain.url], [speculative.url]), conformance=ON)
    eventually(lambda: _conformance(running)[0]["checked_s"] is not None)
    assert _reason(running, chat("tokens=2", temperature=0)) == "client_asked"
    assert _reason(running, chat("tokens=2", temperature=0.8)) == "engine_unverified"
    [server] = _conformance(running)
    assert server["withheld"] == {"sampled_speculation": "engine_unverified"}
    assert running.metric("slipstream_engine_conformance", capability="sampled_speculation") == 0.0
    assert running.metric("slipstream_engine_conformance", capability="greedy_speculation") == 1.0


def test_server_that_refuses_the_probes_stays_unverified_and_the_finding_says_so(
    gateway: Make, openai_server: Make
) -> None:
    plain, speculative = openai_server(), openai_server()
    speculative.status = 400
    running = gateway(manifest_text([plain.url], [speculative.url]), conformance=ON)
    eventually(lambda: _conformance(running)[0]["checked_s"] is not None)
    [server] = _conformance(running)
    assert {finding["result"] for finding in server["findings"]} == {"no_data"}
    assert "refused" in server["findings"][0]["detail"]
    assert running.metric("slipstream_conformance_checks_total", result="no_data") >= 2.0


def test_without_conformance_every_engine_is_trusted(gateway: Make, openai_server: Make) -> None:
    plain, speculative = openai_server(), openai_server()
    running = gateway(manifest_text([plain.url], [speculative.url]))
    assert _reason(running, chat("tokens=2", temperature=0.8)) == "client_asked"
    assert _conformance(running) == []


def test_server_is_checked_again_after_it_was_away(gateway: Make, openai_server: Make) -> None:
    plain, speculative = openai_server(), OpenAiServer(*lasting_ports(1))
    text = manifest_text([plain.url], [speculative.url])
    running = gateway(text, conformance=ON, health=HealthSettings(unreachable_in_a_row=1))
    eventually(lambda: bool(speculative.requests) and _conformance(running)[0]["checked_s"] is not None)
    speculative.stop()
    eventually(lambda: _conformance(running)[0]["findings"] == [])
    again = OpenAiServer(speculative.port)
    try:
        eventually(lambda: bool(again.requests))
    finally:
        again.stop()


def test_servers_of_a_new_manifest_are_checked_and_old_ones_forgotten(gateway: Make, openai_server: Make) -> None:
    plain, before, after = openai_server(), openai_server(), openai_server()
    running = gateway(manifest_text([plain.url], [before.url]), conformance=ON)
    eventually(lambda: bool(before.requests))
    running.manifest.write_text(manifest_text([plain.url], [after.url]))
    eventually(lambda: bool(after.requests))
    assert [server["server"] for server in _conformance(running)] == [after.url]
