"""How a draft of a sampled answer should choose its tokens: the likeliest one, or one sampled with the answer's noise.

    python -m tests.benchmarks.draft_choice [--answers 200] [--temperatures 0.7 1.0 1.3]

The embedded target answers held-out call summaries plainly. The draft reads each answer, and chooses a token at each
position in both ways. The share of positions at which it equals the target's token is the acceptance rate per position.
The difference has a 95 % interval, by a bootstrap over the answers.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import torch
from slipstream_engine.embedded.workload import workload
from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.model import Model
from slipstream_engine.settings import EngineSettings, resolve_source
from slipstream_engine.step_batch import Span
from slipstream_engine.types import GenerationRequest, SamplingParams
from slipstream_kernels import SamplingBatch, sample

from tests.engine.seeded_runs import plain_tokens

_SEED = 20_261
_SLOTS = 8
_MAX_TOKENS = 320
_RESAMPLES = 2000


class Counts(NamedTuple):
    """The tokens of one answer, and how many of them a draft has chosen: the likeliest ones, and sampled ones."""

    tokens: int
    greedy: int
    shared: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0, 1.3])
    args = parser.parse_args()
    engine = load_engine(
        EngineSettings(target="embedded:target", max_slots=_SLOTS, max_waiting=args.answers, device="cpu", threads=1)
    )
    draft = Model.load(resolve_source("embedded:draft"), device=torch.device("cpu"), dtype=torch.float32)
    print(f"{'T':>4} {'tokens':>7} {'greedy':>7} {'shared noise':>12} {'greedy - shared':>24}")
    for temperature in args.temperatures:
        counts = np.array(_counted(engine, draft, args.answers, temperature), dtype=np.float64)
        greedy, shared = counts[:, 1:].sum(0) / counts[:, 0].sum()
        low, high = _interval(counts)
        print(
            f"{temperature:>4} {int(counts[:, 0].sum()):>7} {greedy:>7.3f} {shared:>12.3f} "
            f"{greedy - shared:>+8.3f} [{low:+.3f}, {high:+.3f}]",
            flush=True,
        )


def _counted(engine: Engine, draft: Model, answers: int, temperature: float) -> list[Counts]:
    prompts = [engine.tokenizer.render_chat(each.messages) for each in workload(_SEED, answers, {"summary": 1.0})]
    requests = [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=prompt,
            max_tokens=_MAX_TOKENS,
            sampling=SamplingParams(temperature=temperature, seed=_SEED + index),
        )
        for index, prompt in enumerate(prompts)
    ]
    found = plain_tokens(engine, requests)
    return [_compared(draft, request, found[request.request_id]) for request in requests]


@torch.inference_mode()
def _compared(draft: Model, request: GenerationRequest, answer: list[int]) -> Counts:
    start, tokens = len(request.prompt_ids), [*request.prompt_ids, *answer]
    batch = draft.layout([Span(0, 0, len(tokens) - 1)])
    hidden = draft.forward(torch.tensor(tokens[:-1]), batch, draft.new_cache(1))
    logits, target = draft.logits(hidden[start - 1 :]), torch.tensor(answer)
    count, sampling = len(answer), request.sampling
    noise = SamplingBatch.of([sampling.temperature] * count, [1.0] * count, [0] * count, [sampling.seed] * count)
    shared = sample(logits, noise, torch.arange(start, start + count))
    return Counts(count, int((logits.argmax(-1) == target).sum()), int((shared == target).sum()))


def _interval(counts: np.ndarray) -> tuple[float, float]:
    drawn = np.random.default_rng(_SEED).integers(0, len(counts), size=(_RESAMPLES, len(counts)))
    sums = counts[drawn].sum(1)
    low, high = np.quantile((sums[:, 1] - sums[:, 2]) / sums[:, 0], [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
