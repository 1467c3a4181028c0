"""Streams whose servers are lost half-way: real Triton, real sockets, connections that break at any byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.settings import Deadlines, HealthSettings, OverloadSettings

from tests.support.breaking_network import Cut
from tests.support.manifests import arm, external, pair_yaml
from tests.support.polling import PATIENCE_S, eventually

CONNECT_S = 15.0
PROMPT = "Summarize the call for the CRM: reason, agent actions, outcome, next step.\n\nCustomer: My invoice is wrong."
STALL_S = 4.0  # what a busy machine's Triton may take, and is not gone
UNMOVED: Any = dict.fromkeys(("unreachable_in_a_row", "failed_in_a_row", "min_requests", "min_latencies"), 1_000_000)
# Neither load nor faults change what is decided: a sampled answer with fewer drafts is another one.
STEADY: Any = {"overload": OverloadSettings(adaptive=False), "health": HealthSettings(**UNMOVED)}
CASES = settings(max_examples=16, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Answer(NamedTuple):
    """What a client has of a stream."""

    text: str
    finish_reason: str | None
    usage: Any
    error: Any
    done: bool


def embedded(ports: list[int], policy: str = "") -> str:
    """The embedded pair at `ports`, where clients may choose."""
    endpoints = json.dumps([f"grpc://127.0.0.1:{port}" for port in ports])
    text = EMBEDDED_MANIFEST.read_text()
    text = text.replace("kind: slipstream\n", f"kind: slipstream\n    endpoints: {endpoints}\n", 1)
    assert endpoints in text
    return text.replace("  allowClientMode: true\n", f"  allowClientMode: true\n{policy}")


def read(events: Iterable[str]) -> Answer:
    text, finish, usage, error, done = "", None, None, None, False
    for data in (event.removeprefix("data: ") for event in events if event):
        if data == "[DONE]":
            done = True
            continue
        event = json.loads(data)
        error = event.get("error", error)
        for choice in event.get("choices", []):
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
        usage = event.get("usage") or usage
    return Answer(text, finish, usage, error, done)


def ask(url: str, mode: str, disturb: Callable[[], None] = lambda: None, **more: Any) -> Answer:
    """Streams an answer; `disturb` is called when its first event is here. Waits first for the servers whose
    connections an earlier test has broken."""
    eventually(lambda: httpx.get(f"{url}/health/ready", timeout=PATIENCE_S).status_code == 200)
    body = {
        "model": "slipstream-embedded",
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    headers = {"x-slipstream-mode": mode, "x-slipstream-draft-length": "4"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["x-slipstream-draft-length"] == ("4" if mode == "speculative" else "0")
        lines = response.iter_lines()
        first = next(lines)
        disturb()
        return read([first, *lines])


class Stand(NamedTuple):
    gateway: Any
    network: Any


@pytest.fixture(scope="module")
def stand(
    run_gateway: Callable[..., Any],
    breaking_network: Callable[..., Any],
    triton_endpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stand]:
    """A gateway that sees two servers; both are this run's Triton, over a network that breaks. It takes none for gone
    that is only slow: what resumes here was cut."""
    network = breaking_network(triton_endpoint)
    path = tmp_path_factory.mktemp("resume") / "pair.yaml"
    deadlines = Deadlines(connect_s=CONNECT_S, stall_s=PATIENCE_S / 2)
    with run_gateway(path, embedded(network.ports), deadlines=deadlines, **STEADY) as gateway:
        yield Stand(gateway, network)


@pytest.fixture(scope="module")
def undisturbed(stand: Stand) -> Callable[..., Answer]:
    """The answer that nothing befalls; asked for once."""
    known: dict[str, Answer] = {}

    def answer(**request: Any) -> Answer:
        key = json.dumps(request, sort_keys=True)
        stand.network.plan()  # removes faults that the previous plan has not used up
        if key not in known:
            known[key] = ask(stand.gateway.url, **request)
        return known[key]

    return answer


PROGRESS_BYTES = 14_000  # of more than 16 tokens
REQUESTS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["plain", "speculative"]),
        "temperature": st.sampled_from([0, 0.8, 1.6]),
        "seed": st.sampled_from([1, -7]),
        "max_tokens": st.sampled_from([40, 120]),
        "stop": st.sampled_from([[], ["customer", "ustomer's"], ["\n\n"]]),
    }
)


@CASES
@given(
    request=REQUESTS,
    first=st.integers(1, 32_000),
    others=st.lists(st.integers(PROGRESS_BYTES, 32_000), max_size=2),
)
def test_stream_that_is_cut_anywhere_any_number_of_times_is_the_undisturbed_one(
    stand: Stand, undisturbed: Callable[..., Answer], request: dict[str, Any], first: int, others: list[int]
) -> None:
    """A stream that is cut twice without progress ends: the request might break its servers."""
    positions = [first, *others]
    whole = undisturbed(**request)
    answer = ask(stand.gateway.url, disturb=lambda: stand.network.plan(*map(Cut, positions)), **request)
    assert answer.error is None
    assert (answer.text, answer.finish_reason, answer.done) == (whole.text, whole.finish_reason, True)
    tokens = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [answer.usage[name] for name in tokens] == [whole.usage[name] for name in tokens]
    resumed = answer.usage["slipstream"]["resumed"]
    assert len(resumed) <= stand.network.made
    assert set(resumed) <= {"upstream_unavailable"}


def test_silent_server_is_found_within_the_stall_deadline(
    gateway: Callable[..., Any], stand: Stand, undisturbed: Callable[..., Answer]
) -> None:
    # So hot that the answer is long: its stream has far more bytes than the health checks beside it.
    request: dict[str, Any] = {"mode": "plain", "temperature": 2.0, "seed": 1, "max_tokens": 400}
    whole = undisturbed(**request)
    deadlines = Deadlines(connect_s=CONNECT_S, stall_s=STALL_S)
    served = gateway(embedded(stand.network.ports), deadlines=deadlines, **STEADY)
    stand.network.plan()
    for _ in stand.network.ports:  # so that both are connected, and what stalls is the stream
        assert ask(served.url, **request).text == whole.text
    stand.network.plan(Cut(4000, "stall"))  # before the request: a reader that is late would find it all arrived
    answer = ask(served.url, **request)
    assert (answer.text, answer.usage["completion_tokens"]) == (whole.text, whole.usage["completion_tokens"])
    assert answer.usage["slipstream"]["resumed"] == ["stalled"]
    assert served.metric("slipstream_resumed_total", cause="stalled", result="resumed") == 1


def test_stream_never_goes_on_at_a_server_of_another_protocol(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], stand: Stand
) -> None:
    """What is noted of it says nothing to that one: it would begin anew, and the client have the text twice."""
    plain = openai_server()
    triton = arm(f"grpc://127.0.0.1:{stand.network.ports[0]}", model="embedded", protocol="triton")
    mixed = pair_yaml(
        external(arm(plain.url, model="mixed"), triton),
        "maxDraftTokens: 4",
        name="mixed",
        model="mixed",
        policy=", allowClientMode: true",
    )
    served = gateway(mixed)
    request = {"model": "mixed", "mode": "speculative", "temperature": 0, "max_tokens": 120}
    stand.network.plan()
    whole = ask(served.url, **request)
    answer = ask(served.url, disturb=lambda: stand.network.plan(Cut(1000)), **request)
    assert (answer.error, answer.text) == (None, whole.text)
    assert not plain.requests


def test_several_choices_do_not_go_on(stand: Stand) -> None:
    # Two long answers: 145 and 358 tokens. Shorter ones may end before the cut on a busy machine.
    request = {"mode": "plain", "temperature": 2.0, "seed": 127, "max_tokens": 600, "n": 2}
    answer = ask(stand.gateway.url, disturb=lambda: stand.network.plan(Cut(1000)), **request)
    assert (answer.error["code"], answer.done) == ("stream_interrupted", False)


def test_stream_that_breaks_again_and_again_ends_with_an_error(stand: Stand) -> None:
    # At this temperature the answer is longer than all bytes up to the last cut. The cuts are planned before the answer
    # begins: when a busy client reads the first event, the server may have sent the last one.
    request = {"mode": "plain", "temperature": 2.0, "seed": 1, "max_tokens": 400}
    # Each is after the server's description and a first part of the answer, and before 16 tokens of it.
    stand.network.plan(*[Cut(4000)] * 12)
    answer = ask(stand.gateway.url, **request)
    assert (answer.error["code"], answer.done) == ("stream_interrupted", False)
    assert stand.gateway.metric("slipstream_resumed_total", result="too_often") == 1
    stand.network.plan()
