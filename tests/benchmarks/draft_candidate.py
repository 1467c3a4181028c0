"""What a worse draft beside the present one costs: `python -m tests.benchmarks.draft_candidate DRAFT`.

DRAFT is the folder of a draft that was trained on other tasks. One Triton serves the embedded target with the shipped
draft, and with both drafts in one engine (`draft.alternatives`), which knows nothing of them at first. Each request is
asked of both in turn. Prints how many answers the candidate got, and the ratio of E2E latencies, by rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_engine.embedded.corpus import TASKS

from tests.benchmarks.draft_pool import compare
from tests.benchmarks.draft_training import model_draft

SEED = 61_027
TASKS_OF_OTHERS = ("summary", "reply", "json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path, help="folder of the candidate")
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=TASKS_OF_OTHERS)
    parser.add_argument("--requests", type=int, default=200, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    mix = {task: 1.0 / len(args.tasks) for task in args.tasks}
    both = f'{{kind: model, source: "embedded:draft", alternatives: ["{args.draft.resolve()}"]}}'
    drafts = {"shipped": model_draft("embedded:draft"), "pool": both}
    compare(drafts, mix, seed=SEED, rounds=args.rounds, requests=args.requests)


if __name__ == "__main__":
    main()
