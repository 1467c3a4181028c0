"""Grammars, penalties, biases and least lengths on the engine: drafts change no answer, alone or in a mixed batch."""

from __future__ import annotations

import re
from typing import Any

import pytest
from slipstream_engine.contract.types import FinishReason, GenerationRequest, Penalties, SamplingParams
from slipstream_engine.errors import RequestError
from slipstream_engine.text.grammar import json_grammar, lark_grammar, regex_grammar

from tests.engine.requests_and_answers import Make, drain, generation_request, text_of, tokens_of

SAMPLED = SamplingParams(temperature=1.0, seed=7)
EOS = 256
PATTERN = r"[a-d]{3}-[0-9]{2}(;[a-d]{2})*"
CASES: dict[str, dict[str, Any]] = {
    "presence": {"penalties": Penalties(presence=1.5)},
    "frequency": {"penalties": Penalties(frequency=0.8)},
    "repetition": {"penalties": Penalties(repetition=1.7)},
    "bias": {"logit_bias": {101: 3.0, 32: -100.0}},
    "least": {"min_tokens": 30, "stop_ids": tuple(range(64, 96))},
    "min_p": {"sampling": SamplingParams(temperature=1.2, min_p=0.05, seed=3)},
    "regex": {"grammar": regex_grammar(PATTERN)},
    "everything": {
        "grammar": regex_grammar(PATTERN),
        "penalties": Penalties(frequency=0.4, repetition=1.1),
        "logit_bias": {97: 2.0},
        "min_tokens": 12,
    },
}


def both_ways(request: GenerationRequest, length: int) -> list[GenerationRequest]:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return [
        GenerationRequest(**{**fields, "request_id": name, "draft_tokens": drafts, "adaptive": drafts > 0 and adaptive})
        for name, drafts, adaptive in (("plain", 0, False), ("drafts", length, False), ("adaptive", length, True))
    ]


@pytest.mark.parametrize("draft", ["close", "far", "ngram", "eagle", "ngram+close"])
@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_constrained_answer(make_engine: Make, draft: str, sampling: Any) -> None:
    engine = make_engine(draft, max_slots=3)
    for name, case in CASES.items():
        changes = {"sampling": sampling, **case} if sampling else case
        chunks = drain(engine, both_ways(generation_request(**changes), length=5))
        assert tokens_of(chunks["plain"]) == tokens_of(chunks["drafts"]) == tokens_of(chunks["adaptive"]), name


def test_constrained_and_free_answers_share_a_batch(make_engine: Make) -> None:
    engine = make_engine("close", max_slots=4)
    alone = drain(engine, [generation_request("free", draft_tokens=4)])["free"]
    together = drain(
        engine,
        [
            generation_request("free", draft_tokens=4),
            generation_request("regex", draft_tokens=4, grammar=regex_grammar(PATTERN)),
            generation_request("bias", draft_tokens=2, logit_bias={101: 5.0}),
        ],
    )
    assert tokens_of(together["free"]) == tokens_of(alone)
    assert re.fullmatch(PATTERN, text_of(together["regex"])) or together["regex"][-1].finish_reason == "length"


def test_a_grammar_ends_an_answer(make_engine: Make) -> None:
    engine = make_engine("close")
    [answer] = drain(
        engine, [generation_request(grammar=regex_grammar("[a-c]{4}"), draft_tokens=6, ignore_eos=True)]
    ).values()
    assert re.fullmatch("[a-c]{4}", text_of(answer))
    assert answer[-1].finish_reason is FinishReason.STOP


def test_a_constrained_answer_goes_on_after_its_tokens(make_engine: Make) -> None:
    engine = make_engine("close")
    changes = {"grammar": regex_grammar("[a-z]{30}"), "penalties": Penalties(frequency=0.5), "sampling": SAMPLED}
    whole = tokens_of(drain(engine, [generation_request("whole", **changes)])["whole"])
    rest = drain(engine, [generation_request("rest", resume_ids=tuple(whole[:9]), draft_tokens=4, **changes)])["rest"]
    assert tokens_of(rest) == whole[9:]
    with pytest.raises(RequestError, match="do not have the answer's format"):
        engine.prepare(generation_request(resume_ids=(33, 33), **changes))


def test_least_tokens_forbid_every_end(make_engine: Make) -> None:
    engine = make_engine("close")
    ends = tuple(range(200))
    for length in (0, 6):
        changes = {"stop_ids": ends, "min_tokens": 12, "draft_tokens": length}
        answer = tokens_of(drain(engine, [generation_request(**changes)])["a"])
        assert all(token not in ends for token in answer[:12])


@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_an_answer_ends_with_its_grammar_before_its_least_tokens(make_engine: Make, sampling: Any) -> None:
    changes = {"grammar": regex_grammar("[a-c]{4}"), "min_tokens": 12, **({"sampling": sampling} if sampling else {})}
    chunks = drain(make_engine("close", max_slots=3), both_ways(generation_request(**changes), length=6))
    assert re.fullmatch("[a-c]{4}", text_of(chunks["plain"]))
    assert tokens_of(chunks["plain"]) == tokens_of(chunks["drafts"]) == tokens_of(chunks["adaptive"])
    assert {answer[-1].finish_reason for answer in chunks.values()} == {FinishReason.STOP}


@pytest.mark.parametrize("length", [0, 5])
def test_each_token_has_its_log_probability(make_engine: Make, length: int) -> None:
    engine = make_engine("close")
    chunks = drain(engine, [generation_request(logprobs=3, draft_tokens=length)])["a"]
    for chunk in chunks:
        assert chunk.logprobs is not None
        assert [each.token_id for each in chunk.logprobs] == list(chunk.token_ids)
        for each in chunk.logprobs:
            assert each.best[0] == (each.token_id, each.logprob)  # greedy
            assert [value for _, value in each.best] == sorted((value for _, value in each.best), reverse=True)


def test_a_limit_bounds_the_drafts_of_running_requests(make_engine: Make) -> None:
    engine = make_engine("close")
    engine.add(generation_request(draft_tokens=6))
    chunks = [chunk for _ in range(4) for chunk in engine.step()]
    engine.limit = 1
    while engine.busy:
        chunks += engine.step()
    drafted = chunks[-1].counts.drafted_by_step
    assert max(drafted[:2]) > 1
    assert set(drafted[4:]) <= {1}
    assert chunks[-1].counts.drafted == sum(drafted)
    assert chunks[-1].counts.accepted == sum(chunks[-1].counts.accepted_by_step)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"grammar": regex_grammar("([")}, "response_format"),
        ({"grammar": lark_grammar("start: %%")}, "response_format"),
        ({"logit_bias": {999: 1.0}}, "logit_bias"),
        ({"stop_ids": (999,)}, "stop_token_ids"),
        ({"min_tokens": 3, "stop": ("x",)}, "min_tokens"),
    ],
)
def test_an_unusable_constraint_is_refused(make_engine: Make, changes: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        make_engine(None).prepare(generation_request(**changes))
    assert refused.value.param == param


def test_a_schema_that_is_no_json_is_refused() -> None:
    with pytest.raises(RequestError, match="schema is not a JSON schema"):
        json_grammar("{", "schema")
