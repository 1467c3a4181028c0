"""What happens with too much work, failing servers and clients in a hurry, over real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from slipstream_core.settings import HealthSettings, Limits, OverloadSettings

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually
from tests.support.streams import events_of

REFUSED = "slipstream_rejections_total"
SPECULATE = {"x-slipstream-mode": "speculative"}
Make = Callable[..., Any]


CLIENT = httpx.Client(timeout=PATIENCE_S)  # one for all: each costs more than the requests that are sent here


def post(url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=named)


def test_retries_stay_bounded_while_every_server_fails(gateway: Make, openai_server: Make) -> None:
    servers = [openai_server() for _ in range(3)]
    for server in servers:
        server.status = 500
    began_s = time.monotonic()
    served = gateway(manifest_text([server.url for server in servers]), overload=OverloadSettings(retries_per_s=1.0))
    count = 150
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: post(served.url, chat("tokens=1")).status_code, range(count)))
    assert set(statuses) == {502}
    attempts = sum(len(server.requests) for server in servers)
    assert count <= attempts <= count + 0.2 * count + 10.0 + (time.monotonic() - began_s)
    assert served.metric("slipstream_retries_total", result="refused") > 0
    assert served.metric("slipstream_replica_ejections_total", cause="failures") >= 3


def test_a_server_that_fails_at_once_is_left_out_and_comes_back(gateway: Make, openai_server: Make) -> None:
    broken, healthy = openai_server(), openai_server()
    broken.status = 500
    served = gateway(manifest_text([broken.url, healthy.url]), health=HealthSettings(window_s=0.5))
    for _ in range(40):
        assert post(served.url, chat("tokens=1")).status_code == 200
    assert 1 <= len(broken.requests) < 20
    broken.status = None
    failed = len(broken.requests)
    eventually(lambda: post(served.url, chat("tokens=1")).is_success and len(broken.requests) > failed + 1)
    eventually(lambda: served.metric("slipstream_replica_state", state="closed", arm="plain") == 2)


@pytest.mark.parametrize("stream", [True, False])
def test_deadline_of_the_client_ends_the_request_and_blames_nobody(
    gateway: Make, openai_server: Make, stream: bool
) -> None:
    server = openai_server()
    served = gateway(manifest_text([openai_server().url], [server.url]))
    for _ in range(3):
        late = post(served.url, chat("slow=30", stream=stream), x_request_timeout="0.2", **SPECULATE)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert 0.0 < float(server.headers[-1]["x-request-timeout"]) <= 0.2
    again = post(served.url, chat("tokens=1", stream=stream), x_request_timeout="10", **SPECULATE)
    assert again.headers["x-slipstream-arm"] == "speculative"
    assert served.metric("slipstream_requests_total", status="deadline_exceeded") == 3


def test_deadline_ends_a_stream_with_an_error_event_and_its_work_upstream(gateway: Make, openai_server: Make) -> None:
    server = openai_server()
    served = gateway(manifest_text([server.url]))
    answer = post(served.url, chat("tokens=99999 gap=0.05", stream=True), x_request_timeout="3")
    assert events_of(answer.text)[-1]["error"]["code"] == "deadline_exceeded"
    assert server.cancelled.wait(PATIENCE_S)


def test_bad_timeouts_are_refused_by_name_and_value(gateway: Make, openai_server: Make) -> None:
    served = gateway(manifest_text([openai_server().url]))
    for value in ("0", "-1", "soon", "1e3", "nan", "1,5", "99999999"):
        answer = post(served.url, chat("tokens=1"), x_request_timeout=value)
        assert answer.status_code == 400
        assert "x-request-timeout" in answer.json()["error"]["message"]
        assert f"'{value}'" in answer.json()["error"]["message"]


def test_who_finds_no_place_is_told_when_to_come_back_and_no_one_waits_beyond_a_deadline(
    gateway: Make, openai_server: Make
) -> None:
    server = openai_server()
    limits = Limits(max_in_flight=1, max_queued=1, queue_timeout_s=PATIENCE_S)
    served = gateway(manifest_text([server.url]), limits=limits)
    assert post(served.url, chat("slow=0.3")).status_code == 200  # so that there is a rate to go by
    body = chat("tokens=99999 gap=0.05", stream=True)
    endless = CLIENT.build_request("POST", f"{served.url}/v1/chat/completions", json=body)
    with ThreadPoolExecutor(1) as pool:
        running = CLIENT.send(endless, stream=True)  # it goes on until it is closed
        hurried = post(served.url, chat("tokens=1"), x_request_timeout="0.5")
        assert hurried.status_code in (429, 504)
        waiting = pool.submit(post, served.url, chat("tokens=1"))
        eventually(lambda: served.metric("slipstream_admission_queued") == 1)
        pressure, counted = served.metric("slipstream_admission_pressure"), served.metric(REFUSED, error="overloaded")
        refused = post(served.url, chat("tokens=1"))
        counted = served.metric(REFUSED, error="overloaded") - counted
        running.close()
        assert waiting.result().status_code == 200
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "overloaded", "rate_limit_error")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (pressure > 0, counted) == (True, 1)
    assert served.metric("slipstream_admission_refused_total", cause="queue_full") == 1
    assert served.metric("slipstream_admission_waited_total") == 1
