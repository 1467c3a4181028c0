"""What a key is charged for a request in the end, above all where its client leaves before the server has told it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.polling import PATIENCE_S, eventually

LIMIT = 1_000_000


class Account:
    """One key of a gateway, and what it has been charged so far."""

    def __init__(self, running: Any, key: str) -> None:
        self.upstream = running.upstream
        self._running = running
        self._key_id = key.split("-")[2]
        self._client = httpx.Client(
            base_url=running.url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S, trust_env=False
        )
        self.headers = self._client.headers
        self._requests = 0
        self._tokens = 0.0

    def post(self, path: str, **body: Any) -> httpx.Response:
        self._requests += 1
        return self._client.post(f"/v1/{path}", json={"model": "acme", **body})

    def chat(self, script: str, **body: Any) -> httpx.Response:
        answer = self.post("chat/completions", messages=[{"role": "user", "content": script}], **body)
        assert answer.status_code == 200, answer.text
        return answer

    def leave(self, path: str = "chat/completions", *, after_s: float, **body: Any) -> None:
        """Asks, and hangs up before there is an answer."""
        with pytest.raises(httpx.ReadTimeout):
            self._client.post(
                f"/v1/{path}", json={"model": "acme", **body}, timeout=httpx.Timeout(PATIENCE_S, read=after_s)
            )
        self._requests += 1

    @contextlib.contextmanager
    def stream(self, path: str = "chat/completions", **body: Any) -> Iterator[Iterator[bytes]]:
        """The bytes of a stream as they come; hangs up in the end. The request counts when it is over."""
        with self._client.stream("POST", f"/v1/{path}", json={"model": "acme", "stream": True, **body}) as answer:
            yield answer.iter_raw()
        self._requests += 1

    def leave_stream(self, path: str = "chat/completions", *, events: int, **body: Any) -> None:
        """Hangs up after that many events with generated text."""
        got = b""
        with self.stream(path, **body) as pieces:
            while got.count(b'"word') < events:
                got += next(pieces)

    def charged(self) -> float:
        """What the requests since the last look were charged, when all of them are settled."""
        eventually(
            lambda: self._running.metric("slipstream_access_requests_total", key=self._key_id) >= self._requests,
            f"{self._requests} settled requests",
        )
        before, self._tokens = (
            self._tokens,
            self._running.metric("slipstream_access_tokens_total", key=self._key_id),
        )
        return self._tokens - before

    def held(self, **body: Any) -> int:
        """What a request is charged before it runs."""
        answer = self.post("chat/completions", **body)
        assert answer.status_code == 200, answer.text
        return LIMIT - int(answer.headers["x-ratelimit-remaining-tokens"])


@pytest.fixture
def account(served: Callable[..., Any], keys: Any) -> Callable[..., Account]:
    """Starts a gateway, and opens an account there."""

    def start(*options: str, **settings: Any) -> Account:
        key, admin = keys.create(*options), keys.create("--admin")
        running = served(**settings)
        running.headers = {"authorization": f"Bearer {admin}"}
        return Account(running, key)

    return start


def test_usage_that_the_server_tells_is_what_is_charged(account: Callable[..., Account]) -> None:
    own = account()
    for stream in (False, True):
        own.chat("tokens=7", stream=stream, max_tokens=1000)
        assert own.charged() == 5 + 7
        assert own.post("responses", input="tokens=7", stream=stream).status_code == 200
        assert own.charged() == 5 + 7


def test_event_with_many_tokens_is_no_single_token(account: Callable[..., Account]) -> None:
    """Without the usage, each byte of text may be a token: 3 events of 2,000 bytes."""
    own = account()
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": "tokens=3 big=500 nousage"}]}),
        ("responses", {"input": "tokens=3 big=500 nousage"}),
    ):
        assert own.post(path, stream=True, **body).status_code == 200
        assert 6000 <= own.charged() <= 6000 + 200, path
    own.chat("tokens=3 big=500 nousage", stream=True, max_tokens=40)
    assert 40 < own.charged() <= 40 + 200  # no answer is longer than what was asked for


def test_whole_answer_without_a_usage_is_charged_by_its_text(account: Callable[..., Account]) -> None:
    own = account()
    own.chat("tokens=200 nousage", n=2)  # "word " each
    assert 2000 <= own.charged() <= 2000 + 200
    assert own.post("responses", input="tokens=200 nousage").status_code == 200
    assert 1000 <= own.charged() <= 1000 + 500


def test_log_probabilities_are_counted_where_a_stream_has_them(account: Callable[..., Account]) -> None:
    own = account()
    own.chat("tokens=3 big=500 nousage scored=7", stream=True)
    assert 21 <= own.charged() <= 21 + 200


def test_client_that_leaves_a_stream_pays_for_the_prompt_and_for_what_came(account: Callable[..., Account]) -> None:
    own = account()
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 5000, "parameters": {}}}]
    script = "tokens=500 gap=0.02 big=100"
    own.leave_stream(events=4, messages=[{"role": "user", "content": script}], tools=tools, max_tokens=100_000)
    assert 5000 + 4 * 400 <= own.charged() <= 5000 + 40 * 400
    own.leave_stream("responses", events=4, input=script, instructions="y" * 5000)
    assert 5000 + 4 * 400 <= own.charged() <= 5000 + 40 * 400


def test_client_that_leaves_a_whole_answer_pays_for_all_that_it_asked_for(account: Callable[..., Account]) -> None:
    own = account()
    messages = [{"role": "user", "content": "slow=10 " + "word " * 400}]
    own.leave(after_s=0.4, messages=messages, max_tokens=3000, n=2)
    assert own.upstream.cancelled.wait(PATIENCE_S)
    assert 2000 + 6000 <= own.charged() <= 2000 + 6000 + 200
    own.leave(after_s=0.4, messages=messages)
    assert 2000 + 1024 <= own.charged() <= 2000 + 1024 + 200
    own.leave("completions", after_s=0.4, prompt="slow=10 " + "word " * 400, max_tokens=500, best_of=4)
    assert 2000 + 2000 <= own.charged() <= 2000 + 2000 + 200


def test_client_that_leaves_before_a_streams_first_token_pays_for_the_prompt(account: Callable[..., Account]) -> None:
    own = account()
    messages = [{"role": "user", "content": "slow=10 " + "word " * 400}]
    own.leave(after_s=0.4, messages=messages, max_tokens=3000, stream=True)
    assert 2000 <= own.charged() <= 2000 + 200


def test_tokens_that_a_stream_does_not_show_are_charged_as_asked_for(account: Callable[..., Account]) -> None:
    own = account()
    messages = [{"role": "user", "content": "tokens=500 gap=0.02 big=1"}]
    for field in ({"ignore_eos": True}, {"logit_bias": {"5": 100}}):
        own.leave_stream(events=1, messages=messages, max_tokens=3000, **field)
        assert 3000 < own.charged() <= 3000 + 200


def test_work_that_the_clients_own_deadline_ends_is_charged(account: Callable[..., Account]) -> None:
    own = account()
    own.headers["x-request-timeout"] = "0.3"
    late = own.post("chat/completions", messages=[{"role": "user", "content": "slow=10 " + "word " * 1600}])
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert 8000 + 1024 <= own.charged() <= 8000 + 1024 + 200


def test_request_that_no_server_was_asked_for_costs_nothing(account: Callable[..., Account]) -> None:
    from slipstream_core.settings import Limits

    own = account(limits=Limits(max_in_flight=1))
    with own.stream(messages=[{"role": "user", "content": "tokens=500 gap=0.02"}]) as running:
        next(running)
        own.leave(after_s=0.4, messages=[{"role": "user", "content": "x" * 5000}], max_tokens=3000)
        assert own.charged() == 0


def test_answer_that_a_server_fails_costs_nothing(account: Callable[..., Account]) -> None:
    own = account()
    for script in ("status=500", "status=400", "die=0", "garbage"):
        own.post("chat/completions", messages=[{"role": "user", "content": script}], max_tokens=3000)
        assert own.charged() == 0, script


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 8000}}]}, 2000),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": "x" * 8000}}}}, 2000),
        ({"a_parameter_of_tomorrow": "x" * 8000}, 2000),
        ({"messages": [{"role": "user", "content": "x" * 8000}]}, 2000),
        ({"messages": [{"role": "user", "content": "é" * 4000}]}, 2000),
        ({"messages": [{"role": "user", "content": "x", "name": "x" * 8000}]}, 2000),
        ({"max_tokens": 20_000}, 20_000),
    ],
)
def test_every_field_is_charged_before_the_request_runs(
    account: Callable[..., Account], body: dict[str, Any], tokens: int
) -> None:
    own = account("--tokens-per-minute", str(LIMIT), "--parameter", "unknown_parameters")
    held = own.held(**{"messages": [{"role": "user", "content": "tokens=1"}], "max_tokens": 1, **body})
    assert tokens <= held <= tokens + 100


@pytest.mark.parametrize("url", ["https://example.com/a.png", "data:image/png;base64," + "A" * 400_000])
def test_image_counts_as_one_whatever_its_bytes(account: Callable[..., Account], url: str) -> None:
    own = account("--tokens-per-minute", str(LIMIT))
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [image, image, {"type": "text", "text": "tokens=1"}]
    assert 2048 <= own.held(messages=[{"role": "user", "content": content}], max_tokens=1) <= 2048 + 100
    own.charged()
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "slow=10"}]
    own.leave("responses", after_s=0.4, input=[{"role": "user", "content": parts}], max_output_tokens=10)
    assert 16_384 + 10 <= own.charged() <= 16_384 + 10 + 200
