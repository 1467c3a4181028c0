"""Evaluates the embedded pair on held-out prompts: answers per task, and how well the draft predicts them.

    python -m embedded_training.evaluate [--target DIR] [--draft DIR] [--per-task N] [--json FILE]

The target answers greedily with `transformers`. To measure another engine, pass its `generate` function to `evaluate`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from slipstream_engine.draft_training.acceptance import Acceptance, acceptance
from slipstream_engine.draft_training.llama import Llama
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.embedded.corpus import TASKS, Example, Task
from slipstream_engine.embedded.workload import Request, workload
from tokenizers import Tokenizer

from embedded_training.batches import encode, render_prompt
from embedded_training.checks import check

Generate = Callable[[Sequence[Request]], list[str]]
_BATCH = 16


@dataclass
class TaskReport:
    count: int = 0
    answer_tokens: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def as_dict(self) -> dict[str, float]:
        scores = {name: score / self.count for name, score in self.scores.items()}
        return {
            "n": self.count,
            "answer_tokens": self.answer_tokens / self.count,
            **scores,
            **self.acceptance.rates(),
        }


def transformers_generate(folder: Path) -> Generate:
    """Greedy decoding with `transformers`, in left-padded batches."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")  # nosec B615 # a local folder
    # Any: the stubs of `generate` do not accept the class that `from_pretrained` returns
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # nosec B615

    def generate(requests: Sequence[Request]) -> list[str]:
        prompts = [
            tokenizer.apply_chat_template(request.messages, tokenize=False, add_generation_prompt=True)
            for request in requests
        ]
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            output = model.generate(
                input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], do_sample=False,
                max_new_tokens=max(request.max_tokens for request in requests),
            )  # fmt: skip
        answers = output[:, encoded["input_ids"].shape[1] :]
        return [str(text) for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]

    return generate


def evaluate(
    generate: Generate, *, tokenizer: Tokenizer, draft: Llama, per_task: int, seed: int, gamma: int = 4
) -> tuple[dict[Task, TaskReport], list[tuple[Example, str]]]:
    """A report per task, and the answers that fail a check, with their examples."""
    reports: dict[Task, TaskReport] = {}
    failures: list[tuple[Example, str]] = []
    for task in TASKS:
        report = reports[task] = TaskReport()
        requests = list(workload(seed, per_task, {task: 1.0}))
        for start in range(0, len(requests), _BATCH):
            chunk = requests[start : start + _BATCH]
            for request, answer in zip(chunk, generate(chunk), strict=True):
                scores = check(request.example, answer)
                row = encode(tokenizer, render_prompt(request.example), answer)
                report.count += 1
                report.answer_tokens += len(row.ids) - row.prompt_tokens
                for name, score in scores.items():
                    report.scores[name] = report.scores.get(name, 0.0) + score
                report.acceptance = report.acceptance.plus(acceptance(draft, [row], gamma))
                if min(scores.values()) < 1.0:
                    failures.append((request.example, answer))
    return reports, failures


def format_report(reports: dict[Task, TaskReport]) -> str:
    lines = []
    for task, report in reports.items():
        row = report.as_dict()
        values = "  ".join(f"{name} {value:.2f}" for name, value in row.items() if name not in ("n", "answer_tokens"))
        lines.append(f"{task:<11} n {row['n']:.0f}  {row['answer_tokens']:.0f} tokens  {values}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=TARGET_DIR, help="target checkpoint (default: the shipped one)")
    parser.add_argument("--draft", type=Path, default=DRAFT_DIR, help="draft checkpoint (default: the shipped one)")
    parser.add_argument("--per-task", type=int, default=32, help="prompts per task")
    parser.add_argument("--seed", type=int, default=90_001)
    parser.add_argument("--gamma", type=int, default=4, help="draft tokens per step")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    parser.add_argument("--show-failures", type=int, default=0, metavar="N", help="print N failed answers")
    args = parser.parse_args()
    reports, failures = evaluate(
        transformers_generate(args.target),
        tokenizer=Tokenizer.from_file(str(args.target / "tokenizer.json")),
        draft=Llama.load(args.draft), per_task=args.per_task, seed=args.seed, gamma=args.gamma,
    )  # fmt: skip
    print(format_report(reports))
    for example, answer in failures[: args.show_failures]:
        print(f"\n--- {example.task}\n{render_prompt(example)}\n--- wanted\n{example.answer}\n--- got\n{answer}")
    if args.json:
        args.json.write_text(json.dumps({task: report.as_dict() for task, report in reports.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
