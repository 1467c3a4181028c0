"""`vllm_xargs` of a client before it is decided where its request goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.manifests import pair_yaml
from tests.support.polling import PATIENCE_S


def manifest(vllm: str, plain: str) -> str:
    pools = f'endpoints: ["{vllm}"], plain: {{endpoints: ["{plain}"], model: acme}}'
    return pair_yaml(f"{{kind: vllm, model: acme, {pools}}}", "maxDraftTokens: 4")


@pytest.mark.parametrize(
    ("xargs", "param", "words"),
    [
        ({"slipstream_draft_length": 3}, "vllm_xargs.slipstream_draft_length", "got 3"),
        ({"slipstream_class": "a/b"}, "vllm_xargs.slipstream_class", 'got "a/b"'),
        ([1], "vllm_xargs", "got [1]"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"logit_bias": {"5": 1}}], ids=["both arms", "plain servers alone"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/route"])
def test_the_gateways_arguments_are_refused_wherever_the_request_would_go(
    gateway: Callable[..., Any],
    openai_server: Callable[..., Any],
    xargs: Any,
    param: str,
    words: str,
    more: dict[str, Any],
    path: str,
) -> None:
    vllm, plain = openai_server(), openai_server()
    running = gateway(manifest(vllm.url, plain.url))
    body = chat("tokens=1", vllm_xargs=xargs, **more)
    answer = httpx.post(f"{running.url}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert vllm.requests == plain.requests == []


def test_the_clients_own_arguments_reach_plain_servers(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    vllm, plain = openai_server(), openai_server()
    running = gateway(manifest(vllm.url, plain.url))
    body = chat("tokens=1", vllm_xargs={"own": 1}, logit_bias={"5": 1})
    assert httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code == 200
    assert plain.requests[0]["vllm_xargs"] == {"own": 1}


def test_servers_that_the_gateway_does_not_draft_on_get_the_clients_arguments_as_they_came(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    server = openai_server()
    running = gateway(manifest_text([server.url]))
    body = chat("tokens=1", vllm_xargs={"slipstream_draft_length": 2})
    assert httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).status_code == 200
    assert server.requests[0]["vllm_xargs"] == {"slipstream_draft_length": 2}
