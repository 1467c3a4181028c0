"""Bad requests over real sockets: the right status, OpenAI's error body, and a gateway that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slipstream_core.settings import Limits

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import chat, manifest_text

LIMIT = 100_000


@pytest.fixture(scope="module")
def served(run_gateway: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    upstream = OpenAiServer(scripted=False)
    path = tmp_path_factory.mktemp("bad") / "pair.yaml"
    with run_gateway(path, manifest_text([upstream.url]), limits=Limits(max_body_bytes=LIMIT)) as running:
        yield running
    upstream.stop()


@pytest.fixture(scope="module")
def http(served: Any) -> Iterator[httpx.Client]:
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=20) as client:
        yield client


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"].startswith("application/json")
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/route"]


def test_error_names_field_and_value_and_request_id(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json=chat("x", temperature=-7), headers={"x-request-id": "abc-1"})
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, "temperature")
    assert "got -7" in error["message"]
    assert response.headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/route"])
def test_body_over_the_limit_gets_413_by_length_and_by_chunks(http: httpx.Client, path: str) -> None:
    by_length = http.post(path, content=b" " * (LIMIT + 1))
    by_chunks = http.post(path, content=(b" " * 10_000 for _ in range(20)))
    for response in (by_length, by_chunks):
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"


def test_unknown_paths_and_methods_have_openai_errors(http: httpx.Client) -> None:
    assert error_of(http.get("/v2/nothing"))["message"] == "Invalid URL (GET /v2/nothing)"
    response = http.get("/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert error_of(response)["type"] == "invalid_request_error"


def test_unknown_model_is_named_in_short_and_counted(http: httpx.Client, served: Any) -> None:
    before = served.metric("slipstream_rejections_total", error="model_not_found")
    response = http.post("/v1/chat/completions", json={**chat("x"), "model": "m" * 50_000})
    assert (response.status_code, len(response.content) < 400) == (404, True)
    assert served.metric("slipstream_rejections_total", error="model_not_found") == before + 1


def test_odd_request_ids_are_replaced(http: httpx.Client) -> None:
    for odd in (b"x" * 129, b"caf\xe9"):
        response = http.post("/v1/chat/completions", json=chat("x"), headers=[(b"x-request-id", odd)])
        assert response.status_code == 200
        assert len(response.headers["x-request-id"]) == 32


def test_route_explains_and_runs_nothing(http: httpx.Client, served: Any) -> None:
    before = served.metric("slipstream_requests_total")
    answer = http.post("/v1/route", json=chat("hi", max_tokens=2)).json()
    assert (answer["arm"], answer["draft_length"], answer["pair"]) == ("plain", 0, "pair")
    assert answer["numbers"]
    assert answer["profile"]["evidence"]
    assert served.metric("slipstream_requests_total") == before
    assert error_of(http.post("/v1/route", json={**chat("hi"), "model": "nope"}))["code"] == "model_not_found"


NAMES = [
    "model",
    "messages",
    "prompt",
    "input",
    "instructions",
    "text",
    "stream",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "n",
    "tools",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=6,
)


@given(
    path=st.sampled_from(PATHS),
    fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5),
    valid=st.booleans(),
)
@example(path="/v1/completions", fields={"messages": 0}, valid=True)
@example(path="/v1/completions", fields={"prompt": "slow"}, valid=True)  # by chance what a scripted server follows
@example(path="/v1/completions", fields={"prompt": "die=0"}, valid=True)
@settings(max_examples=150, deadline=None)
def test_no_body_gets_500_or_hangs(http: httpx.Client, path: str, fields: dict[str, Any], valid: bool) -> None:
    body = {**chat("tokens=1"), "prompt": "tokens=1", "input": "tokens=1", **fields} if valid else fields
    response = http.post(path, content=json.dumps(body))
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        error_of(response)


@given(path=st.sampled_from(PATHS), raw=st.binary(max_size=200) | st.sampled_from([b"[]", b"{", b'{"a":' * 3000]))
@settings(max_examples=100, deadline=None)
def test_no_bytes_get_500_or_hang(http: httpx.Client, path: str, raw: bytes) -> None:
    response = http.post(path, content=raw)
    assert (response.status_code, error_of(response)["type"]) == (400, "invalid_request_error")
