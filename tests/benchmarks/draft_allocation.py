"""What it is worth that the engine chooses the draft tokens of each step, beside every fixed draft length.

    python -m tests.benchmarks.draft_allocation [--in-flight 1 4 8 16] [--draft-lengths 1 3 5] [--rounds 2]
    python -m tests.benchmarks.draft_allocation --questions question.jsonl [--per-category 4] [--draft hybrid]
        [--dtype bfloat16]

The engine alone decodes the same requests in a closed loop: plainly, with each fixed draft length, and with lengths of
its own up to `--most`. Each mode has an engine, and a clock that only its own steps advance. The engine whose clock is
behind makes the next step, so that other work on the machine slows all modes alike. Each engine starts without any
knowledge. Without `--questions`, the embedded pair answers its mixed workload; with Spec-Bench's question.jsonl,
SmolLM2-135M-Instruct answers. In float32 the greedy answers must be the same in every mode, or nothing is printed; in
half precision, near ties go either way. Intervals are 95 % by bootstrap over the requests.
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
_HEAD = "embedded:smollm2-eagle"
DRAFTS: dict[str, dict[str, str]] = {
    "ngram": {"draft_kind": "ngram"},
    "eagle": {"draft_kind": "model", "draft": _HEAD},
    "hybrid": {"draft_kind": "hybrid", "draft": _HEAD},
}


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
    index: int
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


class Loop:
    """One mode's closed loop over `work`, in order, with `in_flight` requests at a time."""

    def __init__(self, engine: Engine, mode: Mode, work: Sequence[Work], in_flight: int) -> None:
        self._engine, self._mode, self._work, self._in_flight = engine, mode, work, in_flight
        self.clock_s = 0.0
        self.answers: list[Answer] = []
        self._left = iter(enumerate(work))
        self._began: dict[str, float] = {}
        self._tokens: dict[str, list[int]] = defaultdict(list)
        self._fill()

    @property
    def done(self) -> bool:
        return len(self.answers) == len(self._work)

    def step(self) -> None:
        began_s = time.perf_counter()
        chunks = self._engine.step()
        self.clock_s += time.perf_counter() - began_s
        for chunk in chunks:
            self._tokens[chunk.request_id] += chunk.token_ids
            if chunk.last:
                index = int(chunk.request_id)
                e2e_s = self.clock_s - self._began.pop(chunk.request_id)
                ids = tuple(self._tokens[chunk.request_id])
                self.answers.append(Answer(index, self._work[index].kind, e2e_s, ids))
        self._fill()

    def _fill(self) -> None:
        while len(self._began) < self._in_flight and (following := next(self._left, None)) is not None:
            name, one = str(following[0]), following[1]
            self._began[name] = self.clock_s
            self._engine.add(
                GenerationRequest(
                    request_id=name,
                    prompt_ids=one.prompt_ids,
                    max_tokens=one.max_tokens,
                    sampling=GREEDY,
                    draft_tokens=self._mode.draft_tokens,
                    adaptive=self._mode.adaptive,
                )
            )


def measure(
    settings: EngineSettings, work: Sequence[Work], modes: Sequence[Mode], in_flight: int, rounds: int
) -> dict[str, list[Answer]]:
    """The answers by mode, by round and in the order of `work`; each mode has an engine of its own."""
    engines = {mode.name: load_engine(settings) for mode in modes}
    found: dict[str, list[Answer]] = defaultdict(list)
    for _ in range(rounds):
        loops = {mode.name: Loop(engines[mode.name], mode, work, in_flight) for mode in modes}
        while left := [loop for loop in loops.values() if not loop.done]:
            min(left, key=lambda loop: loop.clock_s).step()
        for name, loop in loops.items():
            found[name] += sorted(loop.answers)
    said = {name: [answer.token_ids for answer in answers] for name, answers in found.items()}
    plain = said[modes[0].name][: len(work)] * rounds
    for name, ids in said.items():
        differ = sum(one != other for one, other in zip(ids, plain, strict=True))
        assert not differ or settings.dtype == "bfloat16", f"{name}: {differ} of {len(ids)} answers are not plain's"
    return found


def interval(plain: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of Σ plain ÷ Σ other, paired by request."""
    draw, count = random.Random(1), len(plain)
    ratios = []
    for _ in range(1000):
        chosen = draw.choices(range(count), k=count)
        ratios.append(sum(plain[index] for index in chosen) / sum(other[index] for index in chosen))
    ratios.sort()
    return ratios[25], ratios[974]


def print_table(found: Mapping[str, Sequence[Answer]], in_flight: int) -> None:
    """Mean E2E of plain decoding divided by that of each mode, by class; the mean of all first."""
    names = list(found)
    kinds = sorted({answer.kind for answer in found[names[0]]})
    print(f"\n{in_flight} in flight" + "".join(f"{name:>10}" for name in names))
    for kind in (None, *kinds):
        means = [statistics.fmean(a.e2e_s for a in found[name] if kind in (None, a.kind)) for name in names]
        print(f"{kind or 'all':16}" + "".join(f"{means[0] / mean:10.3f}" for mean in means), flush=True)
    times = {name: [answer.e2e_s for answer in found[name]] for name in names}
    for name in names[1:]:
        low, high = interval(times[names[0]], times[name])
        against = [
            f"{other} {low:.3f}-{high:.3f}"
            for other in names[1:-1]
            for low, high in [interval(times[other], times[name])]
        ]
        print(
            f"  plain / {name}: {low:.3f}-{high:.3f}" + (f"; against {', '.join(against)}" if name == names[-1] else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--draft-lengths", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--most", type=int, default=8, help="longest draft of the engine's choice (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draft", choices=DRAFTS, default="ngram", help="of SmolLM2 (%(default)s)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="Spec-Bench's question.jsonl")
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40, help="of the mixed workload (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer to a question (%(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    modes = [Mode("plain", 0), *(Mode(f"fixed {n}", n) for n in args.draft_lengths), Mode("chosen", args.most, True)]
    for in_flight in args.in_flight:
        limits = {"max_slots": in_flight, "max_waiting": 1024, "threads": args.threads, "max_draft_tokens": args.most}
        limits |= {"device": "cpu", "dtype": args.dtype}
        if args.questions is None:
            settings = EngineSettings(target="embedded:target", draft="embedded:draft", draft_kind="model", **limits)
            work = embedded_work(load_engine(settings), args.requests)
        else:
            source = str(smollm2_folder(print))
            settings = EngineSettings(
                target=source, context_tokens=_LONGEST_PROMPT + args.max_tokens, **DRAFTS[args.draft], **limits
            )
            work = question_work(load_engine(settings), args.questions, args.per_category, args.max_tokens)
        print_table(measure(settings, work, modes, in_flight, args.rounds), in_flight)


if __name__ == "__main__":
    main()
