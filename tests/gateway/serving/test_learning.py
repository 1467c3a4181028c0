"""The gateway learns from what it serves: lengths, paces, who teaches it, and what it shows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.draws import by_turns, chosen_draws

SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4
ASK = {"authorization": "Bearer sk-test"}


@pytest.fixture
def serve(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> Any:
    """Starts one gateway with a plain and a speculative server behind it, for a policy's fields. It is easily sure, so
    that a long summary speculates before anything is measured."""

    def start(policy: str = "", **options: Any) -> Any:
        plain, speculative = openai_server(), openai_server()
        text = manifest_text([plain.url], [speculative.url], policy=f", confidence: 0.6{policy}")
        running = gateway(text, **options)
        running.plain, running.speculative = plain, speculative
        return running

    return start


def ask(served: Any, script: str, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    """Sends a chat request whose upstream follows `script`, behind an instruction that is classified."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = chat(f"{SUMMARY} {script}", stream="gap" in script)
    response = httpx.post(f"{served.url}{path}", json=body, headers=ASK | named, timeout=20)
    assert response.status_code == 200, response.text
    return response


def numbers(served: Any, script: str, **headers: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(served, script, "/v1/route", **headers).json()["numbers"]
    return found


def test_answers_that_turn_out_short_make_their_kind_plain(serve: Any) -> None:
    served = serve(", minOutputTokens: 20, holdBackShare: 0", draw=by_turns(chosen_draws()))
    first = ask(served, "tokens=3")
    assert first.headers["x-slipstream-reason"] == "speculation_pays"
    assert first.headers["x-slipstream-class"] == "summarization/long"
    for _ in range(20):
        last = ask(served, "tokens=3")
    assert last.headers["x-slipstream-arm"] == "plain"
    assert last.headers["x-slipstream-reason"] == "short_output"
    assert last.headers["x-slipstream-class"] == "summarization/short"
    found = numbers(served, "tokens=3")
    assert found["output_tokens_level"] == "class"
    assert found["output_tokens"] == pytest.approx(3, abs=2)


def test_speculative_servers_that_turn_out_slower_are_left(serve: Any) -> None:
    """No server counts draft tokens here: what speaks is the time per token of the two arms alone."""
    served = serve(", holdBackShare: 0, explorationShare: 0")
    served.plain.pace_s, served.speculative.pace_s = 0.001, 0.01
    script = "tokens=20 gap"
    assert ask(served, script).headers["x-slipstream-reason"] == "speculation_pays"
    for mode in ("plain", "speculative") * 10:
        ask(served, script, x_slipstream_mode=mode)
    last = ask(served, script)
    assert (last.headers["x-slipstream-arm"], last.headers["x-slipstream-reason"]) == ("plain", "break_even")
    assert float(last.headers["x-slipstream-saving-ms"]) < 0


def test_what_is_held_back_is_control_and_is_compared(serve: Any) -> None:
    # By rules alone, and nothing speaks against speculation: the arm comes from the draws, whatever the paces are.
    rules = "decision: rules, minOutputTokens: 1, maxRareTokenShare: 1, minConfidence: 0"
    turns = by_turns(*[chosen_draws()] * 2, *[chosen_draws(hold_back=0.0), chosen_draws()] * 6)
    served = serve(f", holdBackShare: 0.5, explorationShare: 0, {rules}", draw=turns)
    served.plain.pace_s, served.speculative.pace_s = 0.03, 0.001
    script = "tokens=20 gap"
    for mode in ("plain", "speculative"):
        ask(served, script, x_slipstream_mode=mode)
    served.plain.requests.clear()
    served.speculative.requests.clear()
    for _ in range(6):
        control = ask(served, script).headers
        treated = ask(served, script).headers
        assert (control["x-slipstream-arm"], control["x-slipstream-reason"]) == ("control", "hold_back")
        assert control["x-slipstream-draft-length"] == "0"
        assert treated["x-slipstream-arm"] == "speculative"
    assert len(served.plain.requests) == len(served.speculative.requests) == 6
    [pair] = httpx.get(f"{served.url}/v1/evidence").json()["data"]
    assert (pair["pair"], pair["model"]) == ("pair", "acme")
    [found] = pair["classes"]  # what clients asked for is no part of the comparison
    assert (found["request_class"], found["control"], found["speculative"]) == ("summarization/long", 6, 6)
    assert found["e2e_s"]["difference"] < 0
    assert found["e2e_s"]["ci_low"] < found["e2e_s"]["difference"] < found["e2e_s"]["ci_high"]
    labels = {"class": found["request_class"], "pair": "pair", "statistic": "difference"}
    assert served.metric("slipstream_effect_e2e_seconds", **labels) == pytest.approx(found["e2e_s"]["difference"])
    assert served.metric("slipstream_requests_total", arm="control", reason="hold_back") == 6


def test_a_request_may_keep_out_of_the_estimates_where_clients_may_choose(serve: Any) -> None:
    served = serve(", holdBackShare: 0")
    for _ in range(5):
        ask(served, "tokens=3", x_slipstream_learn="off")
    assert numbers(served, "tokens=3")["output_tokens_level"] == "prior"
    assert httpx.get(f"{served.url}/v1/evidence").json()["data"][0]["classes"] == []
    for _ in range(5):
        ask(served, "tokens=3", x_slipstream_learn="on")
    assert numbers(served, "tokens=3")["output_tokens_level"] == "class"


def test_where_clients_may_not_choose_their_wishes_are_ignored(gateway: Any, openai_server: Any) -> None:
    plain, speculative = openai_server(), openai_server()
    text = manifest_text([plain.url], [speculative.url], policy=", holdBackShare: 0")
    served = gateway(text.replace("allowClientMode: true", "allowClientMode: false"))
    for _ in range(5):
        answer = ask(served, "tokens=3", x_slipstream_learn="off", x_slipstream_mode="plain")
        assert answer.headers["x-slipstream-reason"] != "client_asked"
    assert numbers(served, "tokens=3")["output_tokens_level"] == "class"


def test_several_choices_teach_nothing(serve: Any) -> None:
    served = serve()
    for _ in range(5):
        body = chat(f"{SUMMARY} tokens=3", n=2)
        assert httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=ASK).status_code == 200
    assert numbers(served, "tokens=3")["output_tokens_level"] == "prior"


def test_the_kill_switch_wins_over_all_that_was_learnt_and_asked(serve: Any) -> None:
    served = serve(", killSwitch: true, holdBackShare: 1, explorationShare: 1")
    for _ in range(3):
        answer = ask(served, "tokens=3", x_slipstream_mode="speculative", x_slipstream_draft_length="5")
        assert (answer.headers["x-slipstream-arm"], answer.headers["x-slipstream-reason"]) == ("plain", "kill_switch")
    assert served.speculative.requests == []


def test_an_explanation_has_no_draws_whatever_the_request_is_called(serve: Any) -> None:
    served = serve(", holdBackShare: 0.9, explorationShare: 0.9")
    for number in range(30):
        explained = ask(served, "tokens=3", "/v1/route", x_request_id=f"id-{number}").json()
        assert explained["reason"] == "speculation_pays"
        assert explained["saving_s"] is None  # no answer was timed
        assert explained["numbers"]["saving_share"] > 0
    assert served.plain.requests == served.speculative.requests == []


def test_a_request_that_teaches_nothing_is_not_drawn(serve: Any) -> None:
    """It gets the decision that is explained."""
    served = serve(", holdBackShare: 0.9, explorationShare: 0.9, parityShare: 0.9")
    reasons = {ask(served, "tokens=3", x_slipstream_learn="off").headers["x-slipstream-reason"] for _ in range(30)}
    assert reasons == {"speculation_pays"}
    assert served.plain.requests == []
    assert httpx.get(f"{served.url}/v1/evidence").json()["data"][0]["parity"] == []


def test_servers_with_a_draft_length_of_their_own_refuse_another(serve: Any) -> None:
    served = serve()
    headers = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "3"}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=chat("tokens=3"), headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-slipstream-draft-length"
    assert "expected 5, the fixed draft length of its servers, got 3" in response.json()["error"]["message"]


def test_an_answer_that_took_two_attempts_teaches_nothing(
    gateway: Any, openai_server: Any, free_ports: Callable[[int], list[int]]
) -> None:
    """Its time is that of the failure, too; its arm is not the one that was decided."""
    [nobody] = free_ports(1)
    plain = openai_server()
    served = gateway(manifest_text([plain.url], [f"http://127.0.0.1:{nobody}"]))
    answer = ask(served, "tokens=3", x_slipstream_mode="speculative")
    assert answer.headers["x-slipstream-reason"] == "speculative_unavailable"
    assert numbers(served, "tokens=3")["output_tokens_samples"] == 0
