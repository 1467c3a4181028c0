"""What the embedded pair's answers are worth: checks of held-out answers, decoded by the engine.

    python -m tests.benchmarks.quality [--prompts 40] [--seed 424242] [--draft-tokens 4]

Greedy and speculative, which gives the same answers as plain decoding. Each score is the share of answers, or of
facts in them, that pass the check of that name; α is accepted / drafted tokens as the engine counted them.
"""

from __future__ import annotations

import argparse
from collections import Counter

from embedded_training.checks import check
from embedded_training.evaluate import TASKS
from slipstream_engine.embedded.corpus import Task
from slipstream_engine.embedded.workload import workload
from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.types import GenerationRequest, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40, help="prompts per task")
    parser.add_argument("--seed", type=int, default=424_242)
    parser.add_argument("--draft-tokens", type=int, default=4)
    args = parser.parse_args()
    engine = load_engine(
        EngineSettings(target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu", threads=1)
    )
    for task in TASKS:
        print(_measure(engine, task, args.prompts, args.seed, args.draft_tokens), flush=True)


def _measure(engine: Engine, task: Task, prompts: int, seed: int, draft_tokens: int) -> str:
    scores: Counter[str] = Counter()
    tokens = drafted = accepted = 0
    for index, drawn in enumerate(workload(seed, prompts, {task: 1.0})):
        engine.add(
            GenerationRequest(
                request_id=str(index),
                prompt_ids=engine.tokenizer.render_chat(drawn.messages),
                max_tokens=drawn.max_tokens,
                sampling=SamplingParams(temperature=0.0),
                draft_tokens=draft_tokens,
            )
        )
        chunks = []
        while engine.busy:
            chunks += engine.step()
        scores.update(check(drawn.example, "".join(chunk.text for chunk in chunks)))
        counts = chunks[-1].counts
        tokens += counts.output_tokens
        drafted += counts.drafted
        accepted += counts.accepted
    rates = "  ".join(f"{name} {value / prompts:.2f}" for name, value in scores.items())
    return f"{task:<11} n {prompts}  {tokens / prompts:4.0f} tokens  α {accepted / max(drafted, 1):.2f}  {rates}"


if __name__ == "__main__":
    main()
