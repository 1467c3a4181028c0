"""The checks of a running gateway in front of a vLLM server that misbehaves in one way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_core.settings import ConformanceSettings
from slipstream_gateway.lossless.score import ALARM_AT

from tests.gateway.lossless.scripted_engine import ScriptedEngine
from tests.gateway.lossless.vllm_pair import vllm_pair
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually

ON = ConformanceSettings(enabled=True, probe_s=0.2)
OFTEN = ConformanceSettings(enabled=True, probe_s=0.2, every_s=1.0)
UNVERIFIED = dict.fromkeys(("greedy_speculation", "sampled_speculation"), "engine_unverified")
LOOKS = 4
Make = Callable[..., Any]


def _servers(gateway: Any) -> list[dict[str, Any]]:
    data = httpx.get(f"{gateway.url}/v1/evidence", timeout=PATIENCE_S).json()["data"]
    return [server for pair in data for server in pair["conformance"]]


def _server(gateway: Any) -> dict[str, Any]:
    [server] = _servers(gateway)
    return server


def _verdict(gateway: Any) -> dict[str, Any]:
    eventually(lambda: _server(gateway)["checked_s"] is not None)
    return _server(gateway)


def _results(server: dict[str, Any]) -> dict[str, str]:
    return {finding["subject"]: finding["result"] for finding in server["findings"]}


@pytest.mark.parametrize(
    ("policy", "why"),
    [(", killSwitch: true", "kill switch"), (", enabled: false", "not enabled"), (None, "no SpeculationPolicy")],
)
def test_no_draft_is_probed_while_the_pair_may_not_speculate(
    gateway: Make, engine: ScriptedEngine, policy: str | None, why: str
) -> None:
    engine.slow_s = 60.0
    running = gateway(vllm_pair("acme", engine.url), conformance=ON)
    eventually(lambda: any(engine.draft_lengths))
    running.manifest.write_text(vllm_pair("acme", engine.url, policy=policy))
    eventually(lambda: why in (_server(running)["waits_for"] or ""))
    eventually(lambda: engine.in_flight == 0)  # the check that ran is cancelled
    engine.slow_s = 0.0
    before, looks = len(engine.requests), engine.probes + LOOKS
    eventually(lambda: engine.probes >= looks)
    assert len(engine.requests) == before
    assert _server(running)["withheld"] == UNVERIFIED
    running.manifest.write_text(vllm_pair("acme", engine.url))
    assert _verdict(running)["withheld"] == {}


def test_check_without_drafts_says_nothing_and_is_logged_once(
    gateway: Make, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.drafts = False
    running = gateway(vllm_pair("acme", engine.url), conformance=OFTEN)
    server = _verdict(running)
    assert set(_results(server).values()) == {"no_data"}
    assert server["withheld"] == UNVERIFIED
    eventually(lambda: running.metric("slipstream_conformance_checks_total", subject="greedy_speculation") >= 2)
    said = [record.message for record in caplog.records if "cannot be checked" in record.message]
    assert len(said) == 2
    assert all("drafted no token" in message for message in said)
    engine.drafts = True
    eventually(lambda: _server(running)["withheld"] == {})


def test_check_without_drafts_gives_no_capability_back(gateway: Make, engine: ScriptedEngine) -> None:
    engine.garbage = True
    running = gateway(vllm_pair("acme", engine.url), conformance=OFTEN)
    assert _verdict(running)["withheld"] == {"sampled_speculation": "engine_not_lossless"}
    engine.drafts = False
    eventually(lambda: running.metric("slipstream_conformance_checks_total", result="no_data") >= 3)
    assert _server(running)["withheld"] == {"sampled_speculation": "engine_not_lossless"}


def test_longer_drafts_than_those_that_were_judged_are_checked_anew(gateway: Make, engine: ScriptedEngine) -> None:
    engine.facts = {**(engine.facts or {}), "limit": 2}
    running = gateway(vllm_pair("acme", engine.url), conformance=ON)
    _verdict(running)
    before = len(engine.requests)
    engine.facts["limit"] = 3
    eventually(lambda: len(engine.requests) > before)


def test_refused_key_is_told_and_nothing_speculates(
    gateway: Make, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refuse = lambda body: 401
    running = gateway(vllm_pair("acme", engine.url), conformance=ON)
    server = _verdict(running)
    assert _results(server) == dict.fromkeys(UNVERIFIED, "no_data")
    assert server["withheld"] == UNVERIFIED
    assert "greedy_speculation cannot be checked: the probes were refused" in caplog.text
    assert "apiKeyEnv" in caplog.text


def test_server_that_refuses_sampled_probes_has_no_verdict_on_greedy_ones(
    gateway: Make, engine: ScriptedEngine
) -> None:
    """Greedy answers beside no sampled one are not those of traffic."""
    engine.refuse = lambda body: 400 if body["temperature"] > 0 else None
    running = gateway(vllm_pair("acme", engine.url), conformance=ON)
    server = _verdict(running)
    assert _results(server)["greedy_speculation"] == "no_data"
    assert server["withheld"] == UNVERIFIED


def test_greedy_answers_are_compared_where_a_server_knows_openais_parameters_alone(
    gateway: Make, engine: ScriptedEngine
) -> None:
    foreign = {"return_token_ids", "top_k", "repetition_penalty", "prompt_logprobs"}
    engine.refuse = lambda body: 400 if foreign & body.keys() else None
    running = gateway(manifest_text([engine.url], [engine.url]), conformance=ON)
    server = _verdict(running)
    assert _results(server)["greedy_speculation"] == "pass"
    assert server["withheld"] == {"sampled_speculation": "engine_unverified"}
    sampled = [body for body in engine.requests if body["temperature"] > 0 and not foreign & body.keys()]
    assert sampled  # the batch was mixed


def test_server_that_is_away_during_a_repeated_check_is_unverified_at_once(
    gateway: Make, engine: ScriptedEngine
) -> None:
    often = ConformanceSettings(enabled=True, every_s=1.0, probe_s=1000.0)
    running = gateway(manifest_text([engine.url], [engine.url]), conformance=often)
    assert _verdict(running)["withheld"] == {}
    engine.refuse = lambda body: 503
    eventually(lambda: _server(running)["withheld"] == UNVERIFIED)
    eventually(lambda: _server(running)["findings"] == [])
    engine.refuse = lambda body: None
    eventually(lambda: _server(running)["withheld"] == {})


def test_server_that_is_never_spare_is_checked_all_the_same_one_probe_at_a_time(
    gateway: Make, engine: ScriptedEngine
) -> None:
    running = gateway(vllm_pair("acme", engine.url), conformance=OFTEN)
    _verdict(running)
    client = threading.Thread(
        target=httpx.post,
        args=(f"{running.url}/v1/chat/completions",),
        kwargs={"json": chat("Hi"), "headers": {"x-slipstream-mode": "plain"}, "timeout": PATIENCE_S},
    )
    client.start()
    eventually(lambda: engine.chats > 0 and engine.in_flight == 0)
    engine.slow_s, engine.most_in_flight = 0.02, 0  # answers take long enough for a look at what runs beside them
    found = running.metric("slipstream_conformance_checks_total", result="pass")
    eventually(lambda: running.metric("slipstream_conformance_checks_total", result="pass") > found)
    engine.release.set()
    client.join(PATIENCE_S)
    assert engine.most_in_flight == 2  # a probe, and the sampled request beside it


def test_two_pairs_of_one_server_are_checked_once_with_the_longer_drafts(gateway: Make, engine: ScriptedEngine) -> None:
    text = f"{vllm_pair('one', engine.url)}---\n{vllm_pair('two', engine.url, longest=6)}"
    running = gateway(text, conformance=ON)
    eventually(lambda: all(server["checked_s"] is not None for server in _servers(running)))
    assert [(server["pair"], server["withheld"]) for server in _servers(running)] == [("one", {}), ("two", {})]
    assert max(engine.draft_lengths) == 6
    for pair in ("one", "two"):
        labels = {"pair": pair, "subject": "greedy_speculation"}
        assert running.metric("slipstream_conformance_checks_total", **labels) == 1.0


def test_server_without_the_plugin_is_shown_as_what_it_is(
    gateway: Make, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.facts = None
    running = gateway(vllm_pair("acme", engine.url), conformance=ON)
    cannot = dict.fromkeys(UNVERIFIED, "engine_cannot")
    eventually(lambda: _server(running)["withheld"] == cannot)
    assert "it does not have Slipstream's plugin" in _server(running)["waits_for"]
    for capability in cannot:
        assert running.metric("slipstream_engine_conformance", capability=capability) == 0.0
    assert "neither controlled nor checked" in caplog.text


def test_garbage_in_traffic_is_found_by_scores_and_takes_sampled_speculation(
    gateway: Make, engine: ScriptedEngine
) -> None:
    """The client gets no token ids, which the gateway requests for the comparison."""
    running = gateway(vllm_pair("acme", engine.url).replace("parityShare: 0", "parityShare: 1"), conformance=ON)
    assert _verdict(running)["withheld"] == {}
    engine.garbage = True
    asked = {"model": "acme", "prompt": "Hi", "max_tokens": 4, "temperature": 1.0}

    def is_found() -> bool:
        answer = httpx.post(
            f"{running.url}/v1/completions",
            json=asked,
            headers={"x-slipstream-mode": "speculative"},
            timeout=PATIENCE_S,
        )
        assert answer.json()["choices"][0]["text"]
        assert not answer.json()["choices"][0].get("token_ids")
        return bool(_server(running)["withheld"] == {"sampled_speculation": "engine_not_lossless"})

    eventually(is_found)
    assert running.metric("slipstream_parity_evidence", pair="acme") >= ALARM_AT
    assert running.metric("slipstream_parity_mismatched_total", pair="acme") >= 1
    assert running.metric("slipstream_parity_age_seconds", pair="acme") >= 0.0
    [pair] = httpx.get(f"{running.url}/v1/evidence", timeout=PATIENCE_S).json()["data"]
    assert [count["result"] for count in pair["parity"]] == ["fail"]
