"""What a choice of the draft gains: `python -m tests.benchmarks.draft_pool NOTES EXTRACTION`.

NOTES and EXTRACTION are folders of drafts that were trained on these tasks (`tests.benchmarks.draft_training`). One
Triton serves the embedded target with each of them, with the shipped draft, with n-grams, with both of these
(`hybrid`), and with all of them in one engine, which learns what suits which class. A mixed workload is asked of all of
them in turn, one request at a time; each round has new requests. Prints for each round the mean E2E latency by task and
draft, which drafts the pool took, and how much faster it was than each other way, with 95 % intervals by a bootstrap
over the requests.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import httpx
from slipstream_engine.embedded.corpus import Task
from slipstream_engine.embedded.workload import workload

from tests.benchmarks.draft_training import Answered, ask, interval, manifest, model_draft
from tests.benchmarks.system import running_system

SEED = 51_029
MIX: Mapping[Task, float] = {"notes": 0.3, "extraction": 0.3, "summary": 0.3, "reply": 0.1}


def asked(
    client: httpx.Client, names: Sequence[str], seed: int, count: int, mix: Mapping[Task, float]
) -> list[tuple[Task, dict[str, Answered]]]:
    """The answers to `count` requests by each of the models `names`, which are asked in random order."""
    answers = []
    for number, request in enumerate(workload(seed, count, mix)):
        order = random.Random(number).sample(names, len(names))
        answers.append((request.task, {name: ask(client, request, name) for name in order}))
    return answers


def report(answers: Sequence[tuple[Task, dict[str, Answered]]], names: Sequence[str]) -> None:
    taken: defaultdict[Task, Counter[str]] = defaultdict(Counter)
    for task, of_request in answers:
        taken[task][of_request["pool"].draft] += 1
    for task, drafts in sorted(taken.items()):
        of_task = [of_request for each, of_request in answers if each == task]
        means = {name: fmean(of_request[name].seconds for of_request in of_task) for name in names}
        print(f"  {task:11}", ", ".join(f"{name} {1000 * mean:.0f} ms" for name, mean in means.items()))
        print(f"  {'':11} pool took", ", ".join(f"{count} {name}" for name, count in drafts.most_common()))
    totals = {name: sum(of_request[name].seconds for _, of_request in answers) for name in names}
    for name in names:
        if name != "pool":
            pairs = [(of_request[name], of_request["pool"]) for _, of_request in answers]
            gain = interval(pairs, lambda some: fmean(p[0].seconds for p in some) / fmean(p[1].seconds for p in some))
            print(f"  E2E, {name:11} {totals[name]:7.1f} s; pool is faster by {gain}", flush=True)


def compare(drafts: Mapping[str, str], mix: Mapping[Task, float], *, seed: int, rounds: int, requests: int) -> None:
    """Serve all of `drafts`, of which one is called `pool`, and report on `rounds` of `requests`."""
    names = list(drafts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.yaml"
        file.write_text(manifest(drafts))
        with running_system(file) as system, httpx.Client(base_url=system.gateway_url, timeout=120) as client:
            asked(client, names, seed - 1, 3, mix)  # opens connections, fills caches
            for number in range(rounds):
                print(f"round {number + 1}")
                report(asked(client, names, seed + number, requests, mix), names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notes", type=Path)
    parser.add_argument("extraction", type=Path)
    parser.add_argument("--requests", type=int, default=150, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    others = ", ".join(f'"{path.resolve()}"' for path in (args.notes, args.extraction))
    drafts = {
        "shipped": model_draft("embedded:draft"),
        "notes": model_draft(args.notes),
        "extraction": model_draft(args.extraction),
        "ngram": "{kind: ngram}",
        "hybrid": '{kind: hybrid, source: "embedded:draft"}',
        "pool": f'{{kind: hybrid, source: "embedded:draft", alternatives: [{others}]}}',
    }
    compare(drafts, MIX, seed=SEED, rounds=args.rounds, requests=args.requests)


if __name__ == "__main__":
    main()
