"""Two gateways and a real Redis: what one saw the other knows, and without Redis nothing stops."""

from __future__ import annotations

from typing import Any

import httpx

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually
from tests.support.redis_server import RedisServer

SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4


def test_gateways_learn_from_each_other_and_go_on_without_redis(
    gateway: Any, openai_server: Any, redis: RedisServer
) -> None:
    plain, speculative = openai_server(), openai_server()
    text = manifest_text([plain.url], [speculative.url], policy=", holdBackShare: 0")
    one, other = (gateway(text, redis_url=redis.url) for _ in range(2))

    def send(to: Any) -> None:
        answer = httpx.post(f"{to.url}/v1/chat/completions", json=chat(f"{SUMMARY} tokens=3"), timeout=PATIENCE_S)
        assert answer.status_code == 200

    def level(at: Any) -> str:
        explained = httpx.post(f"{at.url}/v1/route", json=chat(f"{SUMMARY} tokens=3"), timeout=PATIENCE_S).json()
        return str(explained["numbers"]["output_tokens_level"])

    eventually(lambda: one.metric("slipstream_store_connected") == other.metric("slipstream_store_connected") == 1)
    for _ in range(5):
        send(one)
    eventually(lambda: level(other) == "class")
    eventually(lambda: other.metric("slipstream_store_received_total") == 5)
    assert one.metric("slipstream_store_received_total") == 0

    redis.kill()
    eventually(lambda: other.metric("slipstream_store_connected") == 0)
    for _ in range(5):
        send(other)
    assert other.metric("slipstream_store_buffered") == 5
    assert other.metric("slipstream_requests_total", status="ok") == 5
