"""What it is worth that the engine chooses the draft tokens of each step, beside every fixed draft length.

    python -m tests.benchmarks.draft_allocation [--in-flight 1 4 8 16] [--draft-lengths 1 3 5] [--rounds 2]
    python -m tests.benchmarks.draft_allocation --questions question.jsonl [--per-category 4]

The engine alone decodes the same requests in a closed loop: plainly, with each fixed draft length, and with lengths of
its own up to `--most`. The modes run by turns, the order is reversed every second round, and each engine starts without
any knowledge. Without `--questions`, the embedded pair answers its mixed workload; with Spec-Bench's question.jsonl,
SmolLM2-135M-Instruct answers with n-gram drafts. Greedy answers must be the same in every mode, or nothing is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slipstream_engine.embedded.workload import workload
from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.types import GenerationRequest, SamplingParams
from slipstream_tools.up.smollm2 import smollm2_folder

GREEDY = SamplingParams(temperature=0.0)
_LONGEST_PROMPT = 900


class Work(NamedTuple):
    """One request: its class, its prompt and the limit of its answer."""

    kind: str
    prompt_ids: tuple[int, ...]
    max_tokens: int


class Mode(NamedTuple):
    name: str
    draft_tokens: int
    adaptive: bool = False


class Answer(NamedTuple):
    kind: str
    e2e_s: float
    token_ids: tuple[int, ...]


def embedded_work(engine: Engine, count: int) -> list[Work]:
    requests = workload(7, count)
    return [Work(str(one.task), engine.tokenizer.render_chat(one.messages), one.max_tokens) for one in requests]


def question_work(engine: Engine, path: Path, per_category: int, max_tokens: int) -> list[Work]:
    found: dict[str, list[Work]] = defaultdict(list)
    for line in path.read_text().splitlines():
        question = json.loads(line)
        prompt_ids = engine.tokenizer.render_chat([{"role": "user", "content": question["turns"][0]}])
        some = found[question["category"]]
        if len(some) < per_category and len(prompt_ids) <= _LONGEST_PROMPT:
            some.append(Work(question["category"], prompt_ids, max_tokens))
    work = [one for some in found.values() for one in some]
    random.Random(5).shuffle(work)
    return work


def run(engine: Engine, work: Sequence[Work], mode: Mode, in_flight: int) -> list[Answer]:
    """Every request of `work`, `in_flight` at a time, in order."""
    began: dict[str, float] = {}
    tokens: dict[str, list[int]] = defaultdict(list)
    answers: dict[str, Answer] = {}
    left = iter(enumerate(work))
    while len(answers) < len(work):
        while len(began) - len(answers) < in_flight and (following := next(left, None)) is not None:
            name, one = str(following[0]), following[1]
            began[name] = time.perf_counter()
            engine.add(
                GenerationRequest(
                    request_id=name,
                    prompt_ids=one.prompt_ids,
                    max_tokens=one.max_tokens,
                    sampling=GREEDY,
                    draft_tokens=mode.draft_tokens,
                    adaptive=mode.adaptive,
                )
            )
        for chunk in engine.step():
            name = chunk.request_id
            tokens[name] += chunk.token_ids
            if chunk.last:
                kind = work[int(name)].kind
                answers[name] = Answer(kind, time.perf_counter() - began[name], tuple(tokens[name]))
    return [answers[str(index)] for index in range(len(work))]


def measure(
    settings: EngineSettings, work: Sequence[Work], modes: Sequence[Mode], in_flight: int, rounds: int
) -> dict[str, list[Answer]]:
    """The answers by mode, each mode with an engine of its own."""
    engines = {mode.name: load_engine(settings) for mode in modes}
    found: dict[str, list[Answer]] = defaultdict(list)
    for number in range(rounds):
        for mode in modes if number % 2 == 0 else modes[::-1]:
            found[mode.name] += run(engines[mode.name], work, mode, in_flight)
    said = {name: [answer.token_ids for answer in answers] for name, answers in found.items()}
    plain = said[modes[0].name][: len(work)] * rounds
    for name, ids in said.items():
        differ = sum(one != other for one, other in zip(ids, plain, strict=True))
        assert not differ, f"{name}: {differ} of {len(ids)} answers are not those of plain decoding"
    return found


def print_table(found: Mapping[str, Sequence[Answer]], in_flight: int) -> None:
    """Mean E2E of plain decoding divided by that of each mode, by class; the mean of all first."""
    names = list(found)
    kinds = sorted({answer.kind for answer in found[names[0]]})
    print(f"\n{in_flight} in flight" + "".join(f"{name:>10}" for name in names))
    for kind in (None, *kinds):
        means = [statistics.fmean(a.e2e_s for a in found[name] if kind in (None, a.kind)) for name in names]
        print(f"{kind or 'all':16}" + "".join(f"{means[0] / mean:10.3f}" for mean in means), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--draft-lengths", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--most", type=int, default=8, help="longest draft of the engine's choice (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--questions", type=Path, metavar="FILE", help="Spec-Bench's question.jsonl")
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40, help="of the mixed workload (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer to a question (%(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    modes = [Mode("plain", 0), *(Mode(f"fixed {n}", n) for n in args.draft_lengths), Mode("chosen", args.most, True)]
    for in_flight in args.in_flight:
        limits = {"max_slots": in_flight, "max_waiting": 1024, "threads": args.threads, "max_draft_tokens": args.most}
        if args.questions is None:
            settings = EngineSettings(
                target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu", **limits
            )
            work = embedded_work(load_engine(settings), args.requests)
        else:
            source = str(smollm2_folder(print))
            settings = EngineSettings(
                target=source, draft_kind="ngram", device="cpu", context_tokens=_LONGEST_PROMPT + 256, **limits
            )
            work = question_work(load_engine(settings), args.questions, args.per_category, args.max_tokens)
        print_table(measure(settings, work, modes, in_flight, args.rounds), in_flight)


if __name__ == "__main__":
    main()
