"""Whether a change of the traffic is answered without a person: `python -m tests.benchmarks.draft_shift DRAFT`.

DRAFT is the folder of a draft that was trained on the new task from the start (`tests.benchmarks.draft_training`). A
gateway with Triton serves the embedded pair, captures its answers, and has an empty folder `draft.candidates`. Beside
it runs `slipstream drafts follow --train`. Clients ask requests of the tasks that the shipped draft knows, then of
the new task as well, until the candidate is promoted for it. Then each request is asked in turn of the shipped draft,
of DRAFT, and of the engine with the candidate. Prints when what happened, and ratios of E2E latencies with 95 %
intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from slipstream_engine.embedded.corpus import TASKS, Task, example
from slipstream_engine.embedded.workload import MAX_TOKENS

from tests.benchmarks.draft_pool import asked
from tests.benchmarks.draft_training import Answered, interval, manifest, model_draft
from tests.benchmarks.system import running_system

SEED, TRAFFIC_SEED = 81_013, 91_009
KNOWN: Mapping[Task, float] = {"summary": 0.4, "json": 0.3, "reply": 0.3}
CONCURRENCY = 6
LIMIT_S = 3600.0
Pair = tuple[Answered, Answered]


class Traffic:
    """Clients that ask the model `pool`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._next = 0
        self.answers = 0

    async def ask(self, mix: Mapping[Task, float], count: int, *, clients: int = CONCURRENCY) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as client:

            async def client_() -> None:
                while self._next < end:
                    self._next += 1
                    drawn = example(TRAFFIC_SEED, self._next, "train", mix)
                    options = {"max_tokens": MAX_TOKENS[drawn.task], "temperature": 0}
                    body = {"model": "pool", "messages": drawn.chat(), **options}
                    (await client.post("/v1/chat/completions", json=body)).raise_for_status()
                    self.answers += 1

            end = self._next + count
            await asyncio.gather(*(client_() for _ in range(clients)))


@contextmanager
def following(store: Path, trained: Path, options: Sequence[str]) -> Iterator[None]:
    command = [
        *(sys.executable, "-m", "slipstream_tools.cli", "drafts", "follow", "--store", str(store), "--pair", "pool"),
        *("--output", str(trained), "--train", "--target", "embedded:target", "--interval", "5", *options),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def events(trained: Path) -> list[dict[str, Any]]:
    file = trained / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def promoted(url: str) -> list[dict[str, Any]]:
    """The candidates that are promoted, by class."""
    data = httpx.get(f"{url}/v1/evidence", timeout=30).json()["data"]
    [drafts] = [pair["drafts"] for pair in data if pair["pair"] == "pool"]
    return [row for row in drafts if row["state"] == "promoted" and row["draft"] != "draft"]


def shift(url: str, store: Path, trained: Path, after: Task, options: Sequence[str], trainings: int) -> None:
    """The traffic before and after the shift, until candidates are promoted for the classes that drifted."""
    traffic, began_s = Traffic(url), time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s, {traffic.answers:5} answers: {what}", flush=True)

    asyncio.run(traffic.ask(KNOWN, 900))
    say("the traffic shifts")
    shown, mix = 0, {after: 0.7, **{task: 0.3 * share for task, share in KNOWN.items()}}
    with following(store, trained, options):
        while time.monotonic() - began_s < LIMIT_S:
            # While it trains, one client leaves it a processor of two.
            clients = 1 if any(trained.glob("*/.training")) else CONCURRENCY
            asyncio.run(traffic.ask(mix, 10 * clients, clients=clients))
            found = events(trained)
            for event in found[shown:]:
                say(json.dumps(event))
            shown = len(found)
            done = [event["draft"] for event in found if event["event"] == "trained"]
            if len(done) >= trainings and any(row["draft"].startswith(done[-1]) for row in promoted(url)):
                break
        else:
            say("not promoted in time")
    for row in promoted(url):
        say(f"promoted: {json.dumps(row)}")


def report(client: httpx.Client, name: str, mix: Mapping[Task, float], count: int) -> None:
    answers = [of_request for _, of_request in asked(client, ("shipped", "dedicated", "pool"), SEED, count, mix)]

    def gain(slow: str, fast: str) -> str:
        pairs: list[Pair] = [(one[slow], one[fast]) for one in answers]
        return interval(pairs, lambda some: fmean(p[0].seconds for p in some) / fmean(p[1].seconds for p in some))

    equal = sum(len({answer.text for answer in one.values()}) == 1 for one in answers)
    print(f"{name}: {equal} of {count} answers equal")
    print(f"  shipped draft ÷ dedicated draft {gain('shipped', 'dedicated')}")
    print(f"  shipped draft ÷ candidate       {gain('shipped', 'pool')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dedicated", type=Path, metavar="DRAFT")
    parser.add_argument("--task", choices=TASKS, default="extraction", help="the new task")
    parser.add_argument("--answers", default="2000", help="answers to train on")
    parser.add_argument("--new", metavar="LAYERSxHIDDEN", help="train a new draft (default: the shipped one)")
    parser.add_argument("--passes", default="3")
    parser.add_argument("--trainings", type=int, default=2, help="go on until so many drafts are trained (default: 2)")
    parser.add_argument("--requests", type=int, default=120)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, trained = folder / "captures", folder / "trained"
        drafts = {"shipped": model_draft("embedded:draft"), "dedicated": model_draft(args.dedicated)}
        drafts["pool"] = f'{{kind: model, source: "embedded:draft", candidates: "{trained}"}}'
        file = folder / "pairs.yaml"
        file.write_text(manifest(drafts).rstrip("\n") + "\n  capture: {share: 1.0, redact: []}\n")  # of the last policy
        with running_system(file, capture_store=store) as system:
            start = ("--new", args.new) if args.new else ("--draft", "embedded:draft")
            options = ("--answers", args.answers, "--passes", args.passes, *start)
            shift(system.gateway_url, store, trained, args.task, options, args.trainings)
            with httpx.Client(base_url=system.gateway_url, timeout=120) as client:
                report(client, args.task, {args.task: 1.0}, args.requests)
                report(client, "other tasks", KNOWN, args.requests)


if __name__ == "__main__":
    main()
