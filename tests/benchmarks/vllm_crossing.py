"""Streams of one vLLM that cross the load at which draft lengths change.

Streams begin one after the other, each when those before it have a number of tokens, and end in this order: the load
rises to all of them and falls again. Each sends requests of the mixed workload until it has its tokens. Five ways take
turns on one engine with the plugin: length 0, a half and the whole of the longest length, a class whose length is 0
above a load (`max_running`), and the engine's choice (`slipstream_adaptive`). Compared are tokens per second, a round
divided by the same round of the best fixed length, and the longest step of a round divided by its median. Steps with a
prompt are no part of the latter. For the class, the time is also compared with that of its tokens at the same loads by
the fixed length in force there, which shows what the changes cost. Times are CPU seconds of the engine's process, of
vLLM's V1 runner.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.embedded.corpus import DEFAULT_MIX
from slipstream_engine.embedded.workload import workload
from slipstream_tools.up.vllm_install import install_vllm

from tests.benchmarks.harness import Interval, Option, Report, benchmark, interval, percentile, ratio

FIXED = ("plain", "half", "whole")
WAYS = (*FIXED, "threshold", "chosen")
CHATS = 64
_ENGINE = Path(__file__).with_name("vllm_crossing_engine.py")


class Step(NamedTuple):
    """One step of the engine. `prompts`: it read a part of a prompt."""

    running: int
    tokens: int
    drafted: int
    prompts: bool
    cpu_s: float


class Round(NamedTuple):
    """The steps of one round, and a hash of its answers."""

    way: str
    steps: Sequence[Step]
    answers: str

    @property
    def tokens_per_s(self) -> float:
        return sum(step.tokens for step in self.steps) / sum(step.cpu_s for step in self.steps)

    @property
    def steadiness(self) -> float:
        """The longest step divided by the median one, of those without a prompt."""
        times = [step.cpu_s for step in self.steps if not step.prompts]
        return max(times) / median(times)


def rounds(args: argparse.Namespace) -> list[Round]:
    """Measured in vLLM's own Python. The first round of each way, which warms up, is left out."""
    install = install_vllm(lambda line: print(line, file=sys.stderr))
    work = {
        "target": str(TARGET_DIR),
        "draft": str(DRAFT_DIR),
        "ways": WAYS,
        "streams": args.streams,
        "length": args.length,
        "tokens": args.tokens,
        "rounds": args.rounds + 1,
        "chats": [item.messages for item in workload(args.seed, CHATS, DEFAULT_MIX)],
    }
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder) / "classes.json"
        length = {"length": args.length, "max_running": args.threshold}
        classes.write_text(json.dumps({"classes": {"threshold": length}}))
        environment = {
            **install.environment(),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "SLIPSTREAM_VLLM_CLASSES": str(classes),
        }
        command = [str(install.python), str(_ENGINE), json.dumps(work)]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    made = [Round(row["way"], [Step(*step) for step in row["steps"]], row["answers"]) for row in found]
    return made[len(WAYS) :]


def _length(steps: Sequence[Step], load: Sequence[int]) -> float:
    """Draft tokens that a request verified in a step, at such a number of running requests."""
    some = [step for step in steps if step.running in load and not step.prompts]
    return sum(step.drafted for step in some) / sum(step.running for step in some)


def _without_changes(of_way: Mapping[str, Sequence[Round]], threshold: int) -> Interval:
    """The time that the tokens of the class take by the fixed length in force at each load, divided by its own."""

    def quotient(rounds: Sequence[Sequence[Round]]) -> float:
        own, plain, whole = (_by_load([one[at] for one in rounds]) for at in range(3))
        expected_s = 0.0
        for load, (tokens, _) in own.items():
            fixed_tokens, fixed_s = (whole if load <= threshold else plain)[load]
            expected_s += tokens * fixed_s / fixed_tokens
        return expected_s / sum(cpu_s for _, cpu_s in own.values())

    return interval(quotient, list(zip(*(of_way[way] for way in ("threshold", "plain", "whole")), strict=True)))


def _by_load(rounds: Sequence[Round]) -> dict[int, tuple[int, float]]:
    """Tokens and seconds at each number of running requests."""
    found: dict[int, tuple[int, float]] = {}
    for step in (step for one in rounds for step in one.steps):
        tokens, seconds = found.get(step.running, (0, 0.0))
        found[step.running] = (tokens + step.tokens, seconds + step.cpu_s)
    return found


def measure(args: argparse.Namespace, report: Report) -> None:
    made = rounds(args)
    of_way = {way: [one for one in made if one.way == way] for way in WAYS}
    speed = {way: [one.tokens_per_s for one in of_way[way]] for way in WAYS}
    best = max(FIXED, key=lambda way: fmean(speed[way]))
    report.note(f"best fixed length: {best}")
    for way in WAYS:
        steps = [step for one in of_way[way] for step in one.steps]
        times = [step.cpu_s for step in steps if not step.prompts]
        report.row(
            way,
            tokens_per_s=interval(fmean, speed[way]),
            to_best_fixed=ratio(speed[way], speed[best]),
            to_length_in_force=_without_changes(of_way, args.threshold) if way == "threshold" else None,
            longest_to_median_step=interval(fmean, [one.steadiness for one in of_way[way]]),
            worst_of_rounds=max(one.steadiness for one in of_way[way]),
            p50_step_ms=1e3 * percentile(times, 0.5),
            drafts_up_to_threshold=_length(steps, range(1, args.threshold + 1)),
            drafts_of_all=_length(steps, [args.streams]),
        )
    report.require(len({one.answers for one in made}) == 1, "answers differ between ways")
    lengths = {step.drafted > 0 for one in of_way["threshold"] for step in one.steps if not step.prompts}
    report.require(lengths == {False, True}, "the load never crossed the threshold")


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        rounds=Option(8, 1, "of each way"),
        streams=Option(8, 4, "most streams at a time"),
        threshold=Option(4, 2, "streams up to which the class drafts"),
        length=Option(6, 4, "the longest draft length"),
        tokens=Option(160, 48, "of each stream"),
        seed=Option(20_268, 20_268, "of the prompts"),
    )
