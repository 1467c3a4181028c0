"""Formats, penalties, biases and log-probabilities: the same with drafts and without."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.contract.engine_client import CHAT, COMPLETION, Answer, Engine, Refused

SCHEMA = {
    "type": "object",
    "properties": {
        "reason": {"enum": ["billing", "delivery", "technical"]},
        "amount": {"type": "integer", "minimum": 0, "maximum": 999},
        "items": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 2},
    },
    "required": ["reason", "amount", "items"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA}}
SAMPLED = {"temperature": 1.0, "seed": 21}


async def both(engine: Engine, path: str = CHAT, **more: Any) -> Answer:
    """The answer with drafts, which is that without."""
    plain = await engine.ask(path, length=0, **more)
    speculative = await engine.ask(path, length=engine.longest, **more)
    assert speculative[:3] == plain[:3]
    return speculative


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "seeded"])
async def test_an_answer_has_its_schema(engine: Engine, sampling: dict[str, Any]) -> None:
    answer = await both(engine, response_format=JSON_SCHEMA, max_tokens=200, **sampling)
    # Where an engine allows any number of spaces, a small model may write them without end.
    assert answer.finish == ("stop",) or (not sampling and answer.text.count(" ") > 20)
    if answer.finish == ("stop",):
        jsonschema.validate(json.loads(answer.text), SCHEMA)


async def test_a_streamed_answer_has_its_schema(engine: Engine) -> None:
    whole = await engine.ask(response_format=JSON_SCHEMA, length=0)
    streamed = await engine.streamed(response_format=JSON_SCHEMA, length=engine.longest)
    assert streamed[:3] == whole[:3]
    assert whole.text.lstrip().startswith("{")


async def test_any_object_begins_as_one(engine: Engine) -> None:
    answer = await both(engine, response_format={"type": "json_object"}, max_tokens=64)
    assert answer.text.lstrip().startswith("{")


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "seeded"])
async def test_an_answer_matches_its_pattern(engine: Engine, path: str, sampling: dict[str, Any]) -> None:
    pattern = r"[A-Z]{2}-[0-9]{4}: (yes|no)"
    answer = await both(engine, path, structured_outputs={"regex": pattern}, **sampling)
    assert re.fullmatch(pattern, answer.text)


async def test_an_answer_is_one_of_its_choices(engine: Engine) -> None:
    answer = await both(engine, structured_outputs={"choice": ["billing", "bills", "delivery"]})
    assert answer.text in ("billing", "bills", "delivery")


async def test_an_answer_follows_its_grammar(engine: Engine) -> None:
    grammar = 'root ::= "SELECT " name ("," name)? ";"\nname ::= [a-z] [a-z]'
    answer = await both(engine, structured_outputs={"grammar": grammar}, **SAMPLED)
    assert re.fullmatch(r"SELECT [a-z]{2}(,[a-z]{2})?;", answer.text)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    "penalties",
    [{"presence_penalty": 1.5}, {"frequency_penalty": 1.2}, {"repetition_penalty": 1.6}],
    ids=lambda penalties: next(iter(penalties)),
)
async def test_penalties_count_drafted_tokens(
    engine: Engine, penalties: dict[str, float], sampling: dict[str, Any]
) -> None:
    answer = await both(engine, ignore_eos=True, **penalties, **sampling)
    assert answer.ids != (await engine.ask(length=0, ignore_eos=True, **sampling)).ids


async def test_a_bias_holds_or_is_refused(engine: Engine) -> None:
    first = (await engine.ask(length=0)).ids[0]
    response = await engine.http.post(CHAT, json=engine.body(CHAT, logit_bias={str(first): -100}))
    if response.status_code == 400:
        assert Refused(response).names("logit_bias")
        return
    answer = await both(engine, logit_bias={str(first): -100})
    assert first not in answer.ids


async def test_least_tokens_come_before_the_end(engine: Engine) -> None:
    end = (await engine.ask(length=0, max_tokens=200)).ids
    answer = await both(engine, min_tokens=len(end) + 5, max_tokens=len(end) + 8)
    assert len(answer.ids) >= len(end) + 5
    assert answer.ids[: len(end) - 1] == end[:-1]


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "seeded"])
async def test_each_token_of_a_chat_has_its_log_probability(engine: Engine, sampling: dict[str, Any]) -> None:
    asked = {"logprobs": True, "top_logprobs": 3, **sampling}
    plain, speculative = [await engine.ask(length=length, **asked) for length in (0, engine.longest)]
    assert plain.ids == speculative.ids
    of_plain, of_drafts = (each.body["choices"][0]["logprobs"]["content"] for each in (plain, speculative))
    for one, other in zip(of_plain, of_drafts, strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-2)
        assert one["logprob"] <= 0
        assert len(one["top_logprobs"]) >= 3
        best = [entry["logprob"] for entry in one["top_logprobs"]]
        assert max(best) >= one["logprob"]
        assert sampling or one["logprob"] == pytest.approx(max(best))


async def test_each_token_of_a_text_has_its_log_probability(engine: Engine) -> None:
    answer = await engine.ask(COMPLETION, length=engine.longest, logprobs=2)
    found = answer.body["choices"][0]["logprobs"]
    lists = [found[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")]
    assert {len(each) for each in lists} == {len(answer.ids)}
    assert all(value <= 0 for value in found["token_logprobs"])
    streamed = await engine.streamed(COMPLETION, length=0, logprobs=2)
    assert streamed.ids == answer.ids
