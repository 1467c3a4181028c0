"""`/v1/models` has what clients read of vLLM's list: the context of each model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S


def listed(url: str) -> dict[str, Any]:
    """The only model of the list, which is also the one by its name."""
    [model] = httpx.get(f"{url}/v1/models", timeout=PATIENCE_S).json()["data"]
    assert httpx.get(f"{url}/v1/models/{model['id']}", timeout=PATIENCE_S).json() == model
    found: dict[str, Any] = model
    return found


def serving(openai_server: Callable[..., OpenAiServer], *contexts: Any) -> list[OpenAiServer]:
    servers = [openai_server() for _ in contexts]
    for server, context in zip(servers, contexts, strict=True):
        server.models, server.max_model_len = ["acme", "other"], context
    return servers


def test_slipstreams_engine_reports_its_context(gateway_url: str) -> None:
    model = listed(gateway_url)
    assert (model["id"], model["root"], model["parent"]) == ("slipstream-embedded",) * 2 + (None,)
    refusal = httpx.post(
        f"{gateway_url}/v1/completions", json={"model": model["id"], "prompt": [5] * 60_000}, timeout=PATIENCE_S
    )
    assert f"the context of {model['max_model_len']} tokens" in refusal.json()["error"]["message"]


@pytest.mark.parametrize(
    ("plain", "speculative", "expected"),
    [
        ([4096], None, 4096),
        ([4096, 2048], None, 2048),
        ([4096], [1024, 8192], 1024),
        ([None, 512], None, 512),
        ([None], None, None),
        (["4096", -1, True, 2**40], None, None),
    ],
)
def test_the_smallest_context_of_the_servers_counts(
    gateway: Callable[..., Any],
    openai_server: Callable[..., OpenAiServer],
    plain: list[Any],
    speculative: list[Any] | None,
    expected: int | None,
) -> None:
    servers = [serving(openai_server, *contexts) for contexts in (plain, speculative or [])]
    urls = [[server.url for server in arm] for arm in servers]
    assert listed(gateway(manifest_text(urls[0], urls[1] or None)).url)["max_model_len"] == expected


def test_a_server_that_lists_nothing_or_is_gone_hides_no_model(
    gateway: Callable[..., Any], openai_server: Callable[..., OpenAiServer]
) -> None:
    known, unlisted, gone = openai_server(), openai_server(), openai_server()
    known.models, known.max_model_len = ["acme"], 300
    gone.stop()
    running = gateway(manifest_text([known.url, unlisted.url, gone.url]))
    assert listed(running.url)["max_model_len"] == 300
