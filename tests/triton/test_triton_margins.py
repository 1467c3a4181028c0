"""Margins through a real Triton: asked for by an input, told in an output, absent otherwise."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from slipstream_engine.embedded import demo

GREEDY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "max_tokens": 40}


def gaps_of(answer: Any) -> list[float]:
    return [gap for part in answer.parts for gap in part.margins]


async def test_every_token_has_a_margin_whether_plain_or_speculative_streamed_or_not(triton: Any) -> None:
    plain = await triton.generate(**GREEDY, margins=True)
    speculative = await triton.generate(**GREEDY, margins=True, draft_tokens=4, stream=True)
    assert plain.error is None
    assert speculative.token_ids == plain.token_ids
    assert len(speculative.parts) > 1
    assert [len(part.margins) for part in speculative.parts] == [len(part.token_ids) for part in speculative.parts]
    assert len(gaps_of(plain)) == len(plain.token_ids)
    assert gaps_of(speculative) == pytest.approx(gaps_of(plain), abs=1e-3)
    assert min(gaps_of(plain)) >= 0
    assert max(gaps_of(plain)) > 1


async def test_who_does_not_ask_gets_no_margins_beside_one_who_does(triton: Any) -> None:
    asked, other, refused = await triton.generate_all(
        [GREEDY | {"margins": True}, GREEDY | {"draft_tokens": 3}, GREEDY | {"margins": False}]
    )
    assert len(gaps_of(asked)) == len(asked.token_ids)
    assert [part.margins for part in other.parts + refused.parts] == [None, None]
    assert asked.token_ids == other.token_ids == refused.token_ids


async def test_plain_http_tells_margins_where_asked(triton_server: Any) -> None:
    url = f"http://{triton_server.ports.host}:{triton_server.ports.http}/v2/models/embedded/generate"
    body = {"text_input": "Order 48213", "max_tokens": 5, "temperature": 0.0}
    async with httpx.AsyncClient(timeout=30) as client:
        asked = (await client.post(url, json=body | {"margins": True})).json()
        other = (await client.post(url, json=body)).json()
    assert len(asked["margins"]) == len(asked["token_ids"])
    assert "margins" not in other
