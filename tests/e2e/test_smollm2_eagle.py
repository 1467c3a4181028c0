"""The shipped EAGLE head on the real SmolLM2, alone and beside n-grams: the target's answers, and drafts that are worth
having."""

from __future__ import annotations

import sys

import pytest
import torch
from slipstream_engine.contract.types import Counts, GenerationRequest, SamplingParams
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import DraftKind, EngineSettings
from slipstream_tools.up.smollm2 import smollm2_folder

QUESTIONS = (
    "Write a short e-mail that invites a colleague to lunch.",
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the larger of two numbers.",
)
LENGTHS = (0, 1, 3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["model", "hybrid"])
def test_shipped_head_drafts_for_smollm2(kind: DraftKind) -> None:
    folder = smollm2_folder(lambda line: print(line, file=sys.stderr))
    settings = EngineSettings(
        target=str(folder), draft="embedded:smollm2-eagle", draft_kind=kind, context_tokens=512, threads=1
    )
    threads = torch.get_num_threads()
    try:
        texts, counts = _answers(settings)
    finally:
        torch.set_num_threads(threads)
    for number in range(len(QUESTIONS)):
        assert texts[f"{number}-1"] == texts[f"{number}-3"] == texts[f"{number}-0"] != []
    first = [counts[f"{number}-1"] for number in range(len(QUESTIONS))]
    assert sum(one.accepted for one in first) / sum(one.drafted for one in first) > 0.25


def _answers(settings: EngineSettings) -> tuple[dict[str, list[int]], dict[str, Counts]]:
    """Tokens and counts of each question with each draft length, all in one batch."""
    engine = load_engine(settings)
    for number, question in enumerate(QUESTIONS):
        prompt = engine.tokenizer.render_chat([{"role": "user", "content": question}])
        for length in LENGTHS:
            engine.add(
                GenerationRequest(
                    request_id=f"{number}-{length}",
                    prompt_ids=prompt,
                    max_tokens=48,
                    sampling=SamplingParams(temperature=0.0),
                    draft_tokens=length,
                )
            )
    texts: dict[str, list[int]] = {}
    counts: dict[str, Counts] = {}
    while engine.busy:
        for chunk in engine.step():
            texts.setdefault(chunk.request_id, []).extend(chunk.token_ids)
            counts[chunk.request_id] = chunk.counts
    return texts, counts
