"""`protect: latency`: which requests reach an engine as protected, over a real gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.gateway.lossless.scripted_engine import FACTS, ScriptedEngine
from tests.gateway.lossless.vllm_pair import vllm_pair
from tests.support.polling import PATIENCE_S, eventually

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("policy", "supports", "mode", "protected"),
    [
        (", protect: latency", True, "plain", True),
        (", protect: latency", True, "speculative", True),
        (", protect: latency", False, "plain", False),
        (", protect: throughput", True, "plain", False),
        (", protect: latency, holdBackShare: 1.0", True, "routed", False),  # the control
    ],
)
def test_requests_are_protected_as_the_policy_says(
    gateway: Callable[..., Any], engine: ScriptedEngine, policy: str, supports: bool, mode: str, protected: bool
) -> None:
    engine.facts = {**FACTS, "adaptive": True, "protects": supports}
    running = gateway(vllm_pair("acme", engine.url, policy=policy))
    eventually(lambda: httpx.get(f"{running.url}/health/ready").status_code == 200)
    headers = {} if mode == "routed" else {"x-slipstream-mode": mode}
    body = {"model": "acme", "prompt": "Summarise the call in a paragraph.", "max_tokens": 300}
    answer = httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    if mode == "routed":
        assert answer.headers["x-slipstream-arm"] == "control"
    assert engine.requests[-1]["vllm_xargs"].get("slipstream_protect", 0) == protected
