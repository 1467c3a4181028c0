"""Requests that break servers run on few of them, and do no harm to the requests of others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from slipstream_core.errors import BreaksServers, UpstreamFailed, UpstreamUnavailable
from slipstream_core.settings import OverloadSettings
from slipstream_core.types import GenerationRequest
from slipstream_gateway.api.parse import parse_chat_request
from slipstream_gateway.request import query_of_death
from slipstream_gateway.request.query_of_death import REFUSED_S, Break, QueriesOfDeath

from tests.gateway.pair_manifest import chat, manifest_text
from tests.gateway.request.breaking_pool import Pool
from tests.support.polling import PATIENCE_S, eventually


@pytest.fixture
def pool(free_ports: Callable[[int], list[int]], tmp_path: Path) -> Iterator[Pool]:
    started = Pool(free_ports(4), tmp_path / "read.jsonl")
    yield started
    started.stop()


@pytest.mark.integration
@pytest.mark.parametrize("prompt", ["deadly", "late stream", "reports"])
def test_a_request_that_ends_servers_ends_two_and_is_refused(
    gateway: Any, pool: Pool, prompt: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = gateway(manifest_text(pool.urls, pool.urls[:2], policy=", resume: text"))
    stream = "stream" in prompt
    mode = {"x-slipstream-mode": "plain"}
    with httpx.Client(base_url=served.url, timeout=PATIENCE_S) as http:

        def ask(text: str) -> httpx.Response:
            return http.post("/v1/chat/completions", json=chat(text, stream=stream), headers=mode)

        first = ask(prompt)
        assert "stream_interrupted" in first.text if stream else first.status_code in (502, 503)
        eventually(lambda: pool.down == 2, "the ends of two servers")
        eventually(lambda: "servers broke 2 times with one request" in caplog.text, "the record of the breaks")
        again = ask(prompt)
        assert again.json()["error"]["code"] == "request_breaks_servers"
        assert 0 < int(again.headers["retry-after"]) <= REFUSED_S
        assert again.headers["x-should-retry"] == "false"
        assert [ask(f"another {number}").status_code for number in range(10)] == [200] * 10
        assert pool.down == 2
        assert pool.runs()[prompt] == 2
    assert served.metric("slipstream_rejections_total", error="breaks_servers") >= 1


@pytest.mark.integration
def test_a_retry_share_of_0_means_no_retry(gateway: Any, pool: Pool) -> None:
    served = gateway(manifest_text(pool.urls), overload=OverloadSettings(retry_share=0.0))
    assert httpx.post(f"{served.url}/v1/chat/completions", json=chat("deadly"), timeout=PATIENCE_S).status_code == 503
    eventually(lambda: pool.down == 1, "the end of one server")
    assert pool.runs() == {"deadly": 1}


@pytest.mark.integration
def test_no_request_runs_more_than_twice_while_servers_break_at_random(gateway: Any, pool: Pool) -> None:
    """Requests of others are in flight on each server that ends."""
    served = gateway(manifest_text(pool.urls))
    draw = random.Random(1)
    prompts = [
        f"{'deadly' if draw.random() < 0.02 else 'slow' if draw.random() < 0.1 else 'fine'} {n}" for n in range(400)
    ]
    with httpx.Client(base_url=served.url, timeout=PATIENCE_S) as http, ThreadPoolExecutor(8) as threads:

        def ask(prompt: str) -> int:
            pool.restart()
            return http.post("/v1/chat/completions", json=chat(prompt)).status_code

        statuses = dict(zip(prompts, threads.map(ask, prompts), strict=True))
    runs = pool.runs()
    assert max(runs.values()) == 2
    assert all(statuses[prompt] != 200 for prompt in prompts if "deadly" in prompt)


def request(content: Any, **more: Any) -> GenerationRequest:
    return parse_chat_request(msgspec.json.encode(chat(content, **more)))


def picture(number: int) -> list[dict[str, Any]]:
    """A message with an image."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number}"}}
    return [{"type": "text", "text": "What is in this image?"}, image]


def schema(number: int) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"maximum": number}}}}


class Server:
    """The part of a replica that the record of breaks uses."""

    def __init__(self, name: str, *, is_up: bool = False) -> None:
        self.name = name
        self.is_up = is_up
        self.upstream = self

    async def probe(self) -> None:
        if not self.is_up:
            raise UpstreamUnavailable("refused")


BROKE = UpstreamUnavailable("broke", broke=True)


def refused(deaths: QueriesOfDeath, content: Any, **more: Any) -> bool:
    try:
        deaths.check("pair", request(content, **more))
    except BreaksServers:
        return True
    return False


def test_only_breaks_of_different_servers_or_times_count() -> None:
    now_s, found = 0.0, list[Break]()
    deaths = QueriesOfDeath(clock=lambda: now_s, found=found.append)
    for _ in range(5):  # the same text five times, on one server that broke once
        deaths.failed("pair", request("popular"), Server("a"), BROKE)  # type: ignore[arg-type]
    assert not refused(deaths, "popular")
    deaths.failed("pair", request("popular"), Server("b"), BROKE)  # type: ignore[arg-type]
    assert refused(deaths, "popular")
    assert not refused(deaths, "another")
    assert [seen.server for seen in found] == ["b"]
    now_s = REFUSED_S
    assert not refused(deaths, "popular")


def test_an_answer_clears_a_request() -> None:
    deaths = QueriesOfDeath()
    deaths.failed("pair", request("text"), Server("a"), BROKE)  # type: ignore[arg-type]
    deaths.answered("pair", request("text"))
    deaths.failed("pair", request("text"), Server("b"), BROKE)  # type: ignore[arg-type]
    assert not refused(deaths, "text")


def test_an_answer_to_a_harmless_variant_clears_nothing() -> None:
    deaths = QueriesOfDeath()
    deadly, harmless = request("text", logit_bias={"-1": 1}), request("text", logit_bias={"1": 1})
    deaths.failed("pair", deadly, Server("a"), BROKE)  # type: ignore[arg-type]
    deaths.answered("pair", harmless)
    deaths.failed("pair", deadly, Server("b"), BROKE)  # type: ignore[arg-type]
    assert refused(deaths, "text", logit_bias={"2": 1})


@pytest.mark.parametrize(
    ("deadly", "other"),
    [((picture(1), {}), (picture(2), {})), (("text", schema(1)), ("text", schema(2)))],
    ids=["image", "schema"],
)
def test_the_same_text_with_another_image_or_schema_is_served(deadly: Any, other: Any) -> None:
    deaths = QueriesOfDeath()
    for name in "ab":
        deaths.failed("pair", request(deadly[0], **deadly[1]), Server(name), BROKE)  # type: ignore[arg-type]
    assert refused(deaths, deadly[0], **deadly[1])
    assert refused(deaths, deadly[0], **deadly[1], seed=7, max_tokens=5)
    assert not refused(deaths, other[0], **other[1])


@pytest.mark.parametrize("is_up", [True, False])
async def test_after_an_internal_error_a_probe_decides(is_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_of_death, "PROBED_AFTER_S", 0.01)
    deaths = QueriesOfDeath()
    for name in "ab":
        deaths.failed("pair", request("ill"), Server(name, is_up=is_up), UpstreamFailed("status 500"))  # type: ignore[arg-type]
    await asyncio.gather(*deaths._probes.values())
    assert refused(deaths, "ill") is not is_up
