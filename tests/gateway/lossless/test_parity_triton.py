"""Parity over a real Triton with the embedded pair: its answers are equal to those of plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_engine.embedded import demo
from slipstream_gateway.upstreams.base import Completion, Usage

BODY: dict[str, Any] = {"model": "slipstream-embedded", "messages": demo.CALL_SUMMARY, "max_tokens": 48}


@pytest.fixture
async def served(bench: Callable[..., Any], triton_endpoint: str) -> Any:
    """A bench for the embedded pair, all of whose speculative answers are compared."""
    text = EMBEDDED_MANIFEST.read_text().replace("  pair: embedded\n", "  pair: embedded\n  parityShare: 1\n")
    assert "parityShare" in text
    made = bench(text, local_endpoints=(f"grpc://{triton_endpoint}",))
    ask = made.job
    made.job = lambda body: msgspec.structs.replace(ask(body), model="embedded")
    return made


async def complete(served: Any, body: dict[str, Any]) -> Completion:
    answer: Completion = await served.plain.upstream.complete(served.job(body))
    return answer


def text_of(answer: Completion) -> str:
    message: dict[str, str] = json.loads(answer.body.data)["choices"][0]["message"]
    return message["content"]


def mismatches(lines: list[str]) -> list[str]:
    """Without the engine's description of itself."""
    return [line for line in lines if not line.startswith("INFO ")]


@pytest.mark.parametrize("stream", [False, True])
async def test_speculative_answers_of_the_real_engine_are_those_of_plain_decoding(
    served: Any, stream: bool, said: Callable[[], list[str]]
) -> None:
    pieces = await served.ask({**BODY, "stream": stream})
    assert (len(pieces) > 1) == stream
    await served.counted({"checked": 1})
    assert mismatches(said()) == []


@pytest.mark.parametrize("seed", range(3))
async def test_sampled_answers_are_compared_by_equality(served: Any, seed: int, said: Callable[[], list[str]]) -> None:
    await served.plain.upstream.probe()  # reads the engine's fingerprint
    body = {**BODY, "temperature": 2, "seed": seed, "stream": True}
    await served.ask(body)
    await served.counted({"checked": 1})
    assert mismatches(said()) == []
    completion = await complete(served, body | {"seed": seed + 1, "stream": False})
    served.end([completion.body], served.job(body | {"stream": False}))
    await served.counted({"checked": 2, "mismatched": 1})
    assert "first_difference=" in mismatches(said())[0]
    assert [count.evidence for count in served.parity.counts()] == [None]  # of the test by likelihood


async def test_stop_strings_and_limits_are_the_same_in_the_replay(served: Any) -> None:
    text = text_of(await complete(served, BODY))
    await served.ask({**BODY, "stop": [text[30:36]], "stream": True})
    await served.ask({**BODY, "max_tokens": 3})
    await served.counted({"checked": 2})


async def test_first_difference_is_told(served: Any, said: Callable[[], list[str]]) -> None:
    """The speculative answer is falsified: the engine gives no wrong ones to compare."""
    right = (await complete(served, BODY)).body
    text = text_of(Completion(body=right, usage=Usage()))
    falsified = text[:10].upper()
    at = next(index for index, pair in enumerate(zip(text, falsified, strict=False)) if len(set(pair)) == 2)
    wrong = msgspec.structs.replace(right, data=right.data.replace(text[:10].encode(), falsified.encode()))
    served.end([wrong], served.job(BODY))
    await served.counted({"checked": 1, "mismatched": 1})
    [line] = mismatches(said())
    assert f"first_difference=character {at} " in line
    assert text[:10] not in line
    assert falsified not in line
