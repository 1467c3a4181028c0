"""An answer that broke off goes on elsewhere as if nothing had happened: tokens, text and counts."""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_engine.contract.types import Chunk, SamplingParams

from tests.engine.requests_and_answers import Make, drain, generation_request, text_of, tokens_of

# Of the random models' answers, where every byte is a token: half characters at most cuts, and some whole ones.
STOPS = st.lists(st.text(st.sampled_from("abc \u00e9\ufffd"), min_size=1, max_size=3), max_size=2)
CASES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_request = partial(generation_request, prompt_ids=tuple(b"abcabc \xc3"), max_tokens=30)


def _joined(row: list[Chunk]) -> tuple[str, list[int]]:
    return text_of(row), tokens_of(row)


@CASES
@given(
    data=st.data(),
    draft=st.sampled_from(["close", "far", "ngram", None]),
    draft_tokens=st.integers(0, 6),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    seed=st.integers(-(2**63), 2**63 - 1),
    stop=STOPS,
)
def test_answer_that_breaks_off_twice_is_the_undisturbed_one(
    make_engine: Make,
    data: st.DataObject,
    draft: str | None,
    draft_tokens: int,
    temperature: float,
    seed: int,
    stop: list[str],
) -> None:
    request = _request(
        sampling=SamplingParams(temperature=temperature, seed=seed), stop=tuple(stop), draft_tokens=draft_tokens
    )
    whole = drain(make_engine(draft), [request])["a"]
    row, steps, accepted = whole, 0, 0
    text, ids = "", []
    for _ in range(2):
        kept = data.draw(st.integers(0, len(row) - 1), label="chunks before the seam")
        if kept:
            more_text, more_ids = _joined(row[:kept])
            text, ids = text + more_text, ids + more_ids
            steps, accepted = steps + row[kept - 1].counts.steps, accepted + row[kept - 1].counts.accepted
        resumed = _request(
            sampling=request.sampling, stop=request.stop, draft_tokens=draft_tokens, resume_ids=tuple(ids)
        )
        row = drain(make_engine(draft), [resumed])["a"]
    rest_text, rest_ids = _joined(row)
    assert (text + rest_text, ids + rest_ids) == _joined(whole)
    last, end = row[-1], whole[-1]
    assert (last.finish_reason, last.counts.output_tokens) == (end.finish_reason, end.counts.output_tokens)
    assert (steps + last.counts.steps, accepted + last.counts.accepted) == (end.counts.steps, end.counts.accepted)
