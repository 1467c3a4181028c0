"""Requests to a gateway in front of vLLM, and what the server itself counted."""

from __future__ import annotations

from typing import Any

import httpx

from tests.gateway.gateway_thread import Gateway
from tests.support.metrics import total
from tests.support.polling import eventually

WAIT_S = 120.0
MODEL = "slipstream-embedded"
CALL = (
    "Summarise this call for the CRM.\n\nAgent: Hello, this is Clara, how can I help you?\n"
    "Customer: My name is Mara Osterova. I was charged twice for my coffee machine.\n"
    "Agent: I am reversing the second payment now."
)


def body(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": CALL}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 48, "ignore_eos": True, **more}


def ask(served: Gateway, mode: str = "auto", *, length: int | None = None, **more: Any) -> httpx.Response:
    headers = {"x-slipstream-mode": mode} | ({"x-slipstream-draft-length": str(length)} if length is not None else {})
    url = f"{served.url}/v1/chat/completions"
    return httpx.post(url, json=body(**more), headers=headers, timeout=WAIT_S)


def explained(served: Gateway, **more: Any) -> dict[str, Any]:
    """The decision for a request that asks for speculation."""
    headers = {"x-slipstream-mode": "speculative"}
    answer = httpx.post(f"{served.url}/v1/route", json=body(**more), headers=headers, timeout=WAIT_S)
    return dict(answer.json())


def until_reason(served: Gateway, reason: str, **more: Any) -> dict[str, Any]:
    """The decision once its reason is `reason`: a server is checked before anything speculates there."""
    eventually(
        lambda: explained(served, **more)["reason"] == reason,
        reason,
        within_s=WAIT_S,
        seen=lambda: explained(served, **more),
    )
    return explained(served, **more)


def counters(url: str) -> dict[tuple[str, str], float]:
    """What a vLLM server drafted, by class and draft length; read from its `/metrics`."""
    found = {}
    for line in httpx.get(f"{url}/metrics", timeout=WAIT_S).text.splitlines():
        if line.startswith("slipstream_vllm_draft_tokens_total{"):
            labels = dict(part.split("=", 1) for part in line[line.index("{") + 1 : line.index("}")].split(","))
            key = labels["request_class"].strip('"'), labels["draft_length"].strip('"')
            found[key] = found.get(key, 0.0) + float(line.rpartition(" ")[2])
    return found


def answered(url: str) -> float:
    """How many requests a vLLM server has completed."""
    return total(httpx.get(f"{url}/metrics", timeout=WAIT_S).text, "vllm:request_success_total")
