"""Speculation changes how fast an answer comes, never what it says: on the real engine, over random models."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from slipstream_engine.contract.types import Chunk, GenerationRequest, SamplingParams

from tests.engine.requests_and_answers import Make, drain, generation_request, tokens_of
from tests.kernels.oracle import Rules, distribution

PROMPTS = [
    tuple(b"Reason for contact: delivery delay. "),
    tuple(b"abcabcabcabcab"),
    tuple(b"Z"),
    tuple(range(40, 90)),
]


def _request(index: int, draft_tokens: int, **changes: object) -> GenerationRequest:
    prompt = PROMPTS[index % len(PROMPTS)]
    return generation_request(f"r{index}", prompt_ids=prompt, draft_tokens=draft_tokens, **changes)


def _tokens(chunks: dict[str, list[Chunk]]) -> dict[str, list[int]]:
    return {name: tokens_of(row) for name, row in chunks.items()}


@pytest.fixture(scope="module")
def greedy_answers(pair_folder: Path) -> list[list[int]]:
    """What transformers' own greedy search says after each prompt."""
    model = transformers.LlamaForCausalLM.from_pretrained(pair_folder / "target").eval()
    answers = []
    for prompt in PROMPTS:
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, pad_token_id=0)
        answers.append(ids[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("draft", [None, "close", "far", "eagle", "ngram", "ngram+close", "ngram+eagle"])
def test_greedy_tokens_are_those_of_transformers(
    make_engine: Make, greedy_answers: list[list[int]], draft: str | None
) -> None:
    """Eight requests with draft lengths 0 to 7 in one batch of four slots: some join while others run."""
    chunks = drain(make_engine(draft), [_request(i, draft_tokens=i) for i in range(8)])
    got = _tokens(chunks)
    for index in range(8):
        assert got[f"r{index}"] == greedy_answers[index % len(PROMPTS)]
    drafted = sum(row[-1].counts.drafted for row in chunks.values())
    assert (drafted > 0) == (draft is not None)


@pytest.mark.parametrize("draft", ["close", "far", "eagle", "ngram", "ngram+far", "ngram+eagle"])
def test_greedy_tokens_stay_the_same_while_the_engine_chooses_the_draft_lengths(
    make_engine: Make, greedy_answers: list[list[int]], draft: str
) -> None:
    requests = [_request(index, draft_tokens=index % 8, adaptive=index % 3 > 0) for index in range(12)]
    found = _tokens(drain(make_engine(draft, max_draft_tokens=7), requests))
    assert [found[f"r{index}"] for index in range(12)] == [greedy_answers[index % len(PROMPTS)] for index in range(12)]


def test_the_engine_stops_to_verify_draft_tokens_that_are_never_accepted(make_engine: Make) -> None:
    engine = make_engine("far", max_draft_tokens=7)
    fixed = drain(engine, [_request(index, draft_tokens=7) for index in range(8)])
    chosen = drain(engine, [_request(index, draft_tokens=7, adaptive=True) for index in range(8)])
    drafted = [sum(row[-1].counts.drafted for row in rows.values()) for rows in (fixed, chosen)]
    assert drafted[1] < 0.2 * drafted[0]


def test_the_engine_chooses_the_draft_length_of_a_sampled_request_without_an_effect_on_its_tokens(
    make_engine: Make,
) -> None:
    sampled = SamplingParams(temperature=1.0, seed=3)
    alone = drain(make_engine("far"), [_request(0, draft_tokens=4, sampling=sampled)])
    engine = make_engine("far")
    drain(engine, [_request(index, draft_tokens=4, adaptive=True) for index in range(8)])
    crowd = [_request(index, draft_tokens=4, adaptive=True) for index in range(1, 4)]
    among = drain(engine, [_request(0, draft_tokens=4, adaptive=True, sampling=sampled), *crowd])
    assert _tokens(among)["r0"] == _tokens(alone)["r0"]
    assert among["r0"][-1].counts.drafted < alone["r0"][-1].counts.drafted


def test_a_close_draft_is_mostly_accepted_and_saves_steps(make_engine: Make) -> None:
    (row,) = drain(make_engine("close"), [_request(0, draft_tokens=4)]).values()
    counts = row[-1].counts
    assert counts.accepted / counts.drafted > 0.5
    assert counts.steps < counts.output_tokens / 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_sampled_tokens_do_not_depend_on_neighbours_or_slots(make_engine: Make, data: st.DataObject) -> None:
    draft = data.draw(st.sampled_from(["close", "far", "ngram", "ngram+far", None]))
    sampling = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_p=data.draw(st.sampled_from([0.5, 0.95, 1.0])),
        top_k=data.draw(st.sampled_from([0, 1, 20])),
        seed=data.draw(st.integers(-(2**63), 2**63 - 1)),
    )
    mine = _request(0, data.draw(st.integers(0, 6)), sampling=sampling, max_tokens=16, request_id="mine")
    alone = _tokens(drain(make_engine(draft, max_slots=1), [mine]))["mine"]
    others = [
        _request(i, data.draw(st.integers(0, 6)), sampling=SamplingParams(temperature=1.0, seed=i))
        for i in range(data.draw(st.integers(1, 6)))
    ]
    at = data.draw(st.integers(0, len(others)))
    together = _tokens(drain(make_engine(draft), [*others[:at], mine, *others[at:]]))["mine"]
    assert together == alone


@pytest.mark.parametrize("draft", [None, "close", "far", "eagle", "ngram", "ngram+close", "ngram+eagle"])
def test_two_sampled_tokens_have_the_targets_joint_distribution(
    make_engine: Make, pair_folder: Path, draft: str | None
) -> None:
    """Chi-squared over 1,500 answers of two tokens; top-k keeps the table of outcomes small."""
    params = {"temperature": 1.5, "top_p": 0.98, "top_k": 3}
    prompt = PROMPTS[1]
    requests = [
        _request(1, 3, request_id=str(seed), max_tokens=3, sampling=SamplingParams(seed=seed, **params))  # type: ignore[arg-type]
        for seed in range(1500)
    ]
    got = _tokens(drain(make_engine(draft, max_slots=16), requests))
    seen = Counter(tuple(tokens[:2]) for tokens in got.values())
    expected = _joint(pair_folder, prompt, params)
    assert set(seen) <= set(expected)
    cells = sorted(expected, key=lambda pair: -expected[pair])
    big = [pair for pair in cells if expected[pair] * len(got) >= 5]
    counts, means = [seen[pair] for pair in big], [expected[pair] * len(got) for pair in big]
    if len(big) < len(cells):
        counts.append(len(got) - sum(counts))
        means.append(len(got) - sum(means))
    assert chisquare(counts, means).pvalue > 1e-4


def _joint(folder: Path, prompt: tuple[int, ...], params: dict[str, float]) -> dict[tuple[int, int], float]:
    """Exact probabilities of the first two tokens, by transformers' logits."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "target").eval()

    def after(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1:]
        rules = Rules(temperature=params["temperature"], top_p=params["top_p"], top_k=int(params["top_k"]))
        return torch.from_numpy(distribution(logits[0].numpy(), rules))

    first = after(list(prompt))
    joint = {}
    for a in first.nonzero().flatten().tolist():
        second = after([*prompt, a])
        for b in second.nonzero().flatten().tolist():
            joint[a, b] = first[a].item() * second[b].item()
    total = sum(joint.values())  # float32 probabilities add up to 1 only nearly
    return {pair: share / total for pair, share in joint.items()}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    committed=st.integers(1, 38),
    draft_tokens=st.integers(0, 6),
    draft=st.sampled_from(["close", "far", "eagle", "ngram", "ngram+far", "ngram+eagle"]),
)
def test_greedy_answer_goes_on_where_it_was_resumed(
    make_engine: Make,
    greedy_answers: list[list[int]],
    committed: int,
    draft_tokens: int,
    draft: str,
) -> None:
    whole = greedy_answers[0]
    resumed = _request(0, draft_tokens, resume_ids=tuple(whole[:committed]))
    (row,) = drain(make_engine(draft), [resumed]).values()
    assert tokens_of(row) == whole[committed:]
    assert row[-1].counts.output_tokens == len(whole)
    assert row[-1].counts.prompt_tokens == len(PROMPTS[0])


def test_plain_sampled_answer_goes_on_where_it_was_resumed(make_engine: Make) -> None:
    """A plain token depends on seed, position and the text before it alone, so that a resumed answer is the same."""
    sampling = SamplingParams(temperature=1.0, seed=11)
    whole = _tokens(drain(make_engine(None), [_request(0, 0, sampling=sampling)]))["r0"]
    rest = _request(0, 0, sampling=sampling, resume_ids=tuple(whole[:17]))
    assert _tokens(drain(make_engine(None), [rest]))["r0"] == whole[17:]
