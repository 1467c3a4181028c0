"""Parity over a real Triton with the embedded pair: token by token, with margins."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_engine.embedded import demo
from slipstream_gateway.upstreams.base import Completion, Tokens

BODY: dict[str, Any] = {"model": "slipstream-embedded", "messages": demo.CALL_SUMMARY, "max_tokens": 48}


@pytest.fixture
def served(bench: Callable[..., Any], triton_endpoint: str) -> Any:
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
    return "".join(piece.text for piece in answer.pieces if isinstance(piece, Tokens))


@pytest.mark.parametrize("stream", [False, True])
async def test_speculative_answers_of_the_real_engine_are_those_of_plain_decoding(
    served: Any, stream: bool, said: Callable[[], list[str]]
) -> None:
    pieces = await served.ask({**BODY, "stream": stream})
    assert (len(pieces) > 1) == stream
    await served.counted({"checked": 1})
    assert said() == []


@pytest.mark.parametrize("seed", range(3))
async def test_sampled_answers_are_compared_by_equality(served: Any, seed: int, said: Callable[[], list[str]]) -> None:
    await served.plain.upstream.probe()  # reads the engine's fingerprint
    body = {**BODY, "temperature": 2, "seed": seed, "stream": True}
    await served.ask(body)
    await served.counted({"checked": 1})
    assert said() == []
    completion = await complete(served, body | {"seed": seed + 1, "stream": False})
    served.end(completion.pieces, served.job(body | {"stream": False}))
    await served.counted({"checked": 2, "mismatched": 1})
    assert "first_difference=token " in said()[0]
    assert served.parity.evidence() == []  # of the test by likelihood


async def test_sampled_answers_of_a_server_without_a_fingerprint_are_not_compared(served: Any) -> None:
    assert served.plain.upstream.fingerprint == ""  # nothing has asked for its facts
    await served.ask({**BODY, "temperature": 1.2})
    assert served.parity.counts() == []


async def test_stop_strings_and_limits_are_the_same_in_the_replay(served: Any) -> None:
    text = text_of(await complete(served, BODY))
    await served.ask({**BODY, "stop": [text[30:36]], "stream": True})
    await served.ask({**BODY, "max_tokens": 3})
    await served.counted({"checked": 2})


async def test_whole_answer_has_token_ids_and_margins_only_where_asked(served: Any) -> None:
    job = served.job(BODY)
    [silent] = (await served.plain.upstream.complete(job)).pieces
    [told] = (await served.plain.upstream.complete(msgspec.structs.replace(job, margins=True))).pieces
    assert silent.token_ids == told.token_ids
    assert len(told.token_ids) == len(told.margins) == 48
    assert silent.margins == ()


async def test_first_token_that_differs_is_told_with_its_margin(served: Any, said: Callable[[], list[str]]) -> None:
    """The speculative answer is falsified: the engine gives no wrong ones to compare."""
    completion = await complete(served, BODY)
    [right] = completion.pieces
    assert isinstance(right, Tokens)
    wrong = msgspec.structs.replace(
        right, text=right.text.upper(), token_ids=(*right.token_ids[:5], right.token_ids[5] + 1, *right.token_ids[6:])
    )
    served.end([wrong], served.job(BODY))
    await served.counted({"checked": 1, "mismatched": 1})
    [told] = (await served.plain.upstream.complete(msgspec.structs.replace(served.job(BODY), margins=True))).pieces
    [line] = said()
    found = re.search(r"first_difference=token 5 margin=(\S+) ", line)
    assert found is not None
    assert float(found[1]) == pytest.approx(told.margins[5], abs=1e-3)
    assert right.text[:10] not in line
    assert wrong.text[:10] not in line
