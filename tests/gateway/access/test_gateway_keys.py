"""A gateway with keys, as the official client and raw HTTP see it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S, eventually

BODY = {"model": "acme", "messages": [{"role": "user", "content": "tokens=3"}]}


def client(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=20)


def ask(url: str, key: str, script: str = "tokens=3", model: str = "acme", **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": script}]
    return client(url, key).chat.completions.create(model=model, messages=messages, **more)


def until(url: str, key: str, wanted: int) -> None:
    """A key that was made while the gateway runs is known soon."""
    headers = {"authorization": f"Bearer {key}"}
    eventually(lambda: httpx.get(f"{url}/v1/models", headers=headers).status_code == wanted, f"status {wanted}")


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["type"], error["code"]


def test_openai_client_gets_its_own_exceptions(served: Callable[..., Any], keys: Any) -> None:
    good = keys.create("--requests-per-minute", "1", "--model", "acme")
    url = served().url
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(url, good[:-1] + ("a" if good[-1] != "a" else "b"))
    assert refused.value.code == "invalid_api_key"
    assert good[-20:] not in str(refused.value)
    with pytest.raises(openai.NotFoundError) as hidden:
        ask(url, good, model="other")
    assert hidden.value.code == "model_not_found"
    assert ask(url, good).choices[0].message.content == "word word word "
    with pytest.raises(openai.RateLimitError) as limited:
        ask(url, good)
    assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "requests")
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60
    assert limited.value.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_key_never_goes_upstream_and_rates_come_with_answers(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--requests-per-minute", "60", "--tokens-per-minute", "6000")
    running = served()
    answer = client(running.url, key).chat.completions.with_raw_response.create(**BODY)
    named = {name: answer.headers[f"x-ratelimit-{name}"] for name in ("limit-requests", "remaining-requests")}
    assert named == {"limit-requests": "60", "remaining-requests": "59"}
    assert answer.headers["x-ratelimit-limit-tokens"] == "6000"
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 6000
    assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
    assert "authorization" not in running.upstream.headers[0]


def test_tokens_of_the_answer_replace_what_was_expected(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--tokens-per-minute", "1200")
    url = served().url
    for _ in range(5):  # each is expected to take about 1,030 tokens, and takes 8
        assert ask(url, key).usage.total_tokens == 8


def test_responses_are_for_keys_and_count_their_tokens(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--tokens-per-minute", "1200")
    running = served()
    with pytest.raises(openai.AuthenticationError):
        client(running.url, "sk-nobody").responses.create(model="acme", input="tokens=3")
    for _ in range(5):  # each is expected to take about 1,030 tokens, and takes 8
        assert client(running.url, key).responses.create(model="acme", input="tokens=3").usage.total_tokens == 8
    used = client(running.url, key).responses.with_raw_response.create(
        model="acme", input="tokens=3", max_output_tokens=600
    )
    assert int(used.headers["x-ratelimit-remaining-tokens"]) > 500
    assert "authorization" not in running.upstream.headers[0]


def completion(url: str, key: str, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/completions", json={"model": "acme", **body}, headers=headers, timeout=PATIENCE_S)


def test_every_prompt_and_every_choice_counts_in_tokens(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--tokens-per-minute", "20000")
    url = served().url
    for body, tokens in (
        ({"prompt": "tokens=3", "max_tokens": 1000, "n": 8}, 8000),
        ({"prompt": ["tokens=3"] * 4, "max_tokens": 1000, "n": 2}, 8000),
        ({"prompt": ["tokens=3", "x " * 8000], "max_tokens": 1}, 4000),
        ({"prompt": [[1] * 3000, [2] * 3000], "max_tokens": 1}, 6000),
    ):
        answer = completion(url, key, **body)
        assert answer.status_code == 200
        used = 20_000 - int(answer.headers["x-ratelimit-remaining-tokens"])
        assert tokens <= used < tokens + 300, body


def test_prompts_beyond_the_cap_on_choices_are_refused(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--tokens-per-minute", "2000")
    running = served()
    refused = completion(running.url, key, prompt=["x"] * 60_000, max_tokens=1000)
    assert error_of(refused) == (429, "tokens", "rate_limit_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    assert running.upstream.requests == []
    manifest = running.manifest.read_text()
    running.manifest.write_text(
        manifest.replace("  model: acme\n", "  model: acme\n  requestBounds: {maxPrompts: 8}\n", 1)
    )

    def asked() -> httpx.Response:
        return completion(running.url, key, prompt=["x"] * 9, max_tokens=100)

    eventually(lambda: asked().status_code == 400, "the bound of the pair", seen=lambda: asked().text)
    error = asked().json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "array_above_max_length")
    assert "at most 8 prompts, got 9" in error["message"]


def test_every_choice_takes_a_place(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--concurrent", "4")
    url = served().url
    refused = completion(url, key, prompt="x", n=5)
    assert error_of(refused) == (429, "requests", "rate_limit_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    assert "it needs 5" in refused.json()["error"]["message"]
    stream = ask(url, key, "tokens=1000 gap=0.05", stream=True, n=3)
    next(iter(stream))
    assert completion(url, key, prompt=["tokens=3"] * 2).status_code == 429
    assert completion(url, key, prompt="tokens=3").status_code == 200
    stream.close()


def test_place_comes_back_when_a_stream_ends_or_its_client_leaves(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--concurrent", "1")
    url = served().url
    stream = ask(url, key, "tokens=1000 gap=0.05", stream=True)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError):
        ask(url, key)
    stream.close()
    eventually(lambda: ask(url, key), "the stream's place is free", ignoring=openai.RateLimitError)
    assert "".join(c.choices[0].delta.content or "" for c in ask(url, key, stream=True)) == "w0 w1 w2 "
    assert ask(url, key)


@pytest.mark.parametrize("told", ["9" * 400, "2147483648", "-1000000"])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_that_cannot_be_locks_no_place_and_refunds_no_budget(
    served: Callable[..., Any], keys: Any, told: str, stream: bool
) -> None:
    keys.run("price", "--input", "0", "--output", "1000")
    key = keys.create("--concurrent", "1", "--usd-per-day", "0.01", "--tokens-per-minute", "5000")
    url = served().url
    headers = {"authorization": f"Bearer {key}"}
    assert ask(url, key, max_tokens=8)  # 3 tokens, 0.003 USD
    for path, script in (
        ("chat/completions", {"messages": [{"role": "user", "content": f"tokens=1 told={told}"}]}),
        ("responses", {"input": f"tokens=1 told={told}"}),
    ):
        body = {"model": "acme", "stream": stream, ("max_output_tokens" if "input" in script else "max_tokens"): 1}
        answer = httpx.post(f"{url}/v1/{path}", json={**body, **script}, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        assert "word" in answer.text or "w0" in answer.text
    with pytest.raises(openai.RateLimitError) as refused:
        ask(url, key, max_tokens=8)  # 0.003 USD are still spent
    assert refused.value.code == "insufficient_quota"
    answer = client(url, key).chat.completions.with_raw_response.create(**{**BODY, "max_tokens": 3})
    assert 3000 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 5000


def test_budget_ends_with_openais_quota_error(served: Callable[..., Any], keys: Any) -> None:
    keys.run("price", "--input", "0", "--output", "1000")
    key = keys.create("--usd-per-day", "0.01")
    url = served().url
    assert ask(url, key, max_tokens=8)  # 3 tokens, 0.003 USD
    with pytest.raises(openai.RateLimitError) as refused:
        ask(url, key, max_tokens=8)  # 0.008 USD more may be too much
    assert refused.value.code == refused.value.type == "insufficient_quota"
    assert ask(url, key, max_tokens=7)


def test_models_outside_the_scope_look_like_none(served: Callable[..., Any], keys: Any) -> None:
    url, own = None, keys.create("--model", "team-b/*")
    url = served().url
    headers = {"authorization": f"Bearer {own}"}
    assert httpx.get(f"{url}/v1/models", headers=headers).json()["data"] == []
    answers = [
        (httpx.get(f"{url}/v1/models/{name}", headers=headers), httpx.post(f"{url}{path}", json=body, headers=headers))
        for name in ("acme", "nope")
        for path, body in (("/v1/chat/completions", {**BODY, "model": name}), ("/v1/route", {**BODY, "model": name}))
    ]
    for one, other in zip(answers[:2], answers[2:], strict=True):
        for real, unreal in zip(one, other, strict=True):
            assert real.status_code == unreal.status_code == 404
            assert real.text.replace("acme", "nope") == unreal.text
            assert sorted(real.headers) == sorted(unreal.headers)
    assert httpx.get(f"{url}/v1/models").status_code == 401


def test_a_question_counts_as_a_request_and_as_nothing_else(served: Callable[..., Any], keys: Any) -> None:
    keys.run("price", "--input", "1000", "--output", "1000")
    limits = ("--tokens-per-minute", "5000", "--concurrent", "1", "--usd-per-day", "5")
    key = keys.create("--requests-per-minute", "4", *limits)
    url = served().url
    headers = {"authorization": f"Bearer {key}"}
    assert httpx.post(f"{url}/v1/route", json={}, headers=headers).status_code == 400
    for left in ("3", "2", "1"):
        explained = httpx.post(f"{url}/v1/route", json=BODY, headers=headers)
        assert (explained.status_code, explained.headers["x-ratelimit-remaining-requests"]) == (200, left)
        assert "x-ratelimit-limit-tokens" not in explained.headers
    answer = client(url, key).chat.completions.with_raw_response.create(**{**BODY, "max_tokens": 1})
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 4900
    refused = httpx.post(f"{url}/v1/route", json=BODY, headers=headers)
    assert error_of(refused) == (429, "requests", "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    unlimited = keys.create("--concurrent", "1")
    until(url, unlimited, 200)
    for _ in range(3):  # no place is held
        assert httpx.post(f"{url}/v1/route", json=BODY, headers={"authorization": f"Bearer {unlimited}"}).is_success


def test_headers_of_ours_need_their_scope(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create("--mode", "plain", "--no-draft-length", "--no-learn-off")
    url = served().url
    for header, value, status in (
        ("x-slipstream-mode", "plain", 200),
        ("x-slipstream-mode", "auto", 200),
        ("x-slipstream-mode", "speculative", 403),
        ("x-slipstream-draft-length", "3", 403),
        ("x-slipstream-learn", "off", 403),
        ("x-slipstream-learn", "on", 200),
    ):
        headers = {"authorization": f"Bearer {key}", header: value}
        answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == status, (header, value, answer.text)
        if status == 403:
            assert error_of(answer) == (403, "invalid_request_error", "insufficient_permissions")


def test_admin_paths_and_the_inside_of_decisions_are_for_admins(served: Callable[..., Any], keys: Any) -> None:
    user, admin = keys.create(), keys.create("--admin")
    url = served().url
    for path in ("/metrics", "/v1/evidence", "//metrics", "/metrics/", "/./metrics", "/METRICS", "/%6detrics"):
        codes = [
            httpx.get(f"{url}{path}", headers={"authorization": f"Bearer {key}"} if key else {}).status_code
            for key in ("", user)
        ]
        assert codes in ([401, 403], [404, 404]), path
    mine = {"authorization": f"Bearer {admin}"}
    text = httpx.get(f"{url}/metrics", headers=mine).text
    assert 'slipstream_access_denied_total{cause="unauthenticated"}' in text
    assert "slipstream_access_keys 2.0" in text
    assert httpx.get(f"{url}/health/live").status_code == 200
    inside = [
        httpx.post(f"{url}/v1/route", json=BODY, headers={"authorization": f"Bearer {key}"}).json()
        for key in (user, admin)
    ]
    assert len(str(inside[0])) < len(str(inside[1]))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Authorization:"],
        ["Authorization: Bearer"],
        ["Authorization: {key}"],
        ["Authorization: Basic {key}"],
        ["Authorization: Bearer\t{key}"],
        ["Authorization: Bearer {key} x"],
        ["Authorization: Bearer {key},"],
        ['Authorization: Bearer "{key}"'],
        ["Authorization: Bearer {upper}"],
        ["Authorization: Bearer {key}\x00"],
        ["Authorization: Bearer \xa0{key}"],
        ["Authorization: Bearer {key}", "Authorization: Bearer {key}"],
        ["Authorization: Bearer {key}", "Authorization: Bearer wrong"],
        ["Authorization: Bearer wrong", "Authorization: Bearer {key}"],
        ["Authorization: Basic x", "Authorization: Bearer {key}"],
        ["X-Api-Key: {key}"],
        ["Api-Key: {key}"],
        ["Proxy-Authorization: Bearer {key}"],
        ["X-Forwarded-Authorization: Bearer {key}", "X-Real-Ip: 127.0.0.1"],
        ["Cookie: authorization=Bearer {key}"],
    ],
)
def test_nothing_but_one_bearer_key_opens(guarded: tuple[int, str], lines: list[str]) -> None:
    port, key = guarded
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n"
    for line in lines:
        head += line.format(key=key, upper=key.upper()).encode("latin-1") + b"\r\n"
    status = answer_to(port, head + b"\r\n")  # the body never comes: nobody waits for it
    assert status in (400, 401), status


def test_scheme_is_told_in_any_case_and_an_unknown_one_gets_a_challenge(guarded: tuple[int, str]) -> None:
    port, key = guarded
    url = f"http://127.0.0.1:{port}/v1/models"
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert httpx.get(url, headers={"authorization": f"{scheme} {key}"}).status_code == 200
    refused = httpx.get(url, headers={"authorization": "Bearer x"})
    assert refused.headers["www-authenticate"].startswith("Bearer ")
    assert error_of(refused) == (401, "invalid_request_error", "invalid_api_key")


def answer_to(port: int, data: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        head = b""
        while b"\r\n" not in head and (part := connection.recv(4096)):
            head += part
    return int(head.split()[1])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, run_gateway: Callable[..., Any]) -> Any:
    """The port of a gateway with one key, and that key."""
    from slipstream_core.settings import AccessSettings

    from tests.gateway.key_file import Keys

    folder = tmp_path_factory.mktemp("guarded")
    keys = Keys(folder / "keys.json")
    key = keys.create()
    text = manifest_text(["http://127.0.0.1:9"])
    with run_gateway(folder / "pair.yaml", text, access=AccessSettings(keys=keys.path)) as running:
        yield running.port, key
