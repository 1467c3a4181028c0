"""Optional white space around header values is no part of them (RFC 9110, 5.5), and a scheme may have several blanks
after it (11.4). Over raw sockets, because clients strip or refuse such values."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.pair_manifest import chat
from tests.support.polling import PATIENCE_S, eventually

BLANKS = [" {}", "  {}", "\t{}", "{} ", "{}\t", "{}  \t ", "\t {}\t"]


def answer(port: int, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of the response to a request with exactly these header values."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    sent = json.dumps(body).encode() if body is not None else None
    connection.putrequest("POST" if body is not None else "GET", path)
    named = {"content_length": str(len(sent)), "content_type": "application/json"} if sent is not None else {}
    for name, value in {**named, **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(sent)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


@pytest.fixture
def keyed(served: Callable[..., Any], keys: Any) -> tuple[Any, str]:
    key = keys.create()
    running = served()
    eventually(lambda: answer(running.port, "/v1/models", authorization=f"Bearer {key}")[0] == 200, "the key")
    return running, key


def test_blanks_around_a_key_are_no_part_of_it(keyed: tuple[Any, str]) -> None:
    running, key = keyed
    values = [form.format(f"Bearer {key}") for form in BLANKS]
    values += [f"Bearer  {key}", f"Bearer   {key} ", f"\tBEARER    {key}"]
    for value in values:
        assert answer(running.port, "/v1/models", authorization=value)[0] == 200, repr(value)
        assert answer(running.port, "/v1/chat/completions", chat("tokens=1"), authorization=value)[0] == 200, repr(
            value
        )


@pytest.mark.parametrize(
    "form",
    ["Bearer{}", "Bearer\t{}", "Bearer \t{}", "Bearer", "Bearer ", "{}", "Bearer x {}", "Basic {}", "Bearer {} x"],
)
def test_other_forms_are_refused(keyed: tuple[Any, str], form: str) -> None:
    running, key = keyed
    status, found = answer(running.port, "/v1/models", authorization=form.format(key))
    assert (status, found["error"]["code"]) == (401, "invalid_api_key")


def test_blanks_around_every_other_header_are_no_part_of_it(keyed: tuple[Any, str]) -> None:
    running, key = keyed
    values = {
        "authorization": f"Bearer {key}",
        "content_encoding": "identity",
        "content_type": "application/json; charset=utf-8",
        "x_request_id": "abc-1",
        "x_request_timeout": "20.5",
        "x_slipstream_capture": "deny",
        "x_slipstream_draft_length": "3",
        "x_slipstream_learn": "off",
        "x_slipstream_mode": "plain",
    }
    for form in BLANKS:
        padded = {name: form.format(value) for name, value in values.items()}
        status, found = answer(running.port, "/v1/route", chat("tokens=1"), **padded)
        assert (status, found.get("reason")) == (200, "no_draft"), (form, found)
    for form in BLANKS:
        status, found = answer(
            running.port, "/v1/route", chat("tokens=1"), **{**padded, "x_slipstream_mode": form.format("warp")}
        )
        assert (status, found["error"]["param"]) == (400, "x-slipstream-mode")
        assert 'got "warp"' in found["error"]["message"]
