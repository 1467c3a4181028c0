"""What training on captured answers gains: `python -m tests.benchmarks.draft_training DRAFT --task notes`.

One Triton serves the embedded pair twice, with the shipped draft and with that of the folder DRAFT, from `slipstream
drafts train` on answers of `tests.benchmarks.draft_capture`. Each request is new to both, and is asked of both in turn,
one at a time, streamed and greedily; the engine chooses the draft lengths. Prints tokens per step, and how much better
the trained draft is, by tokens per step and by E2E latency, with 95 % intervals by a bootstrap over the requests.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import httpx
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_engine.embedded.corpus import TASKS, Task
from slipstream_engine.embedded.workload import Request, workload

from tests.benchmarks.system import MODEL, running_system

SEED = 41_017
_RESAMPLES = 2000
_NAMES = ("shipped", "trained")
_SHIPPED = '{kind: model, source: "embedded:draft"}'


class Answered(NamedTuple):
    """One answer: its time to the last byte in s, its tokens, and the target's steps."""

    seconds: float
    tokens: int
    steps: int
    text: str
    draft: str = ""


Pair = tuple[Answered, Answered]


def manifest(drafts: Mapping[str, str]) -> str:
    """The embedded target with each of `drafts`, as models of these names; a draft is in YAML."""
    shipped = EMBEDDED_MANIFEST.read_text()
    texts = []
    for name, draft in drafts.items():
        text = shipped.replace("name: embedded", f"name: {name}").replace("pair: embedded", f"pair: {name}")
        texts.append(text.replace(MODEL, name).replace(_SHIPPED, draft))
    return "---\n".join(texts)


def model_draft(source: Path | str) -> str:
    return f'{{kind: model, source: "{source.resolve() if isinstance(source, Path) else source}"}}'


def ask(client: httpx.Client, request: Request, model: str) -> Answered:
    body = {
        "model": model, "messages": request.messages, "max_tokens": request.max_tokens, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    text, usage = "", {}
    began = time.perf_counter()
    with client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-slipstream-mode": "speculative"}
    ) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                usage = event.get("usage") or usage
    seconds = time.perf_counter() - began
    return Answered(
        seconds,
        usage["completion_tokens"],
        usage["slipstream"]["target_steps"],
        text,
        usage["slipstream"]["draft"] or "",
    )


def tokens_per_step(pairs: Sequence[Pair], which: int) -> float:
    return sum(pair[which].tokens for pair in pairs) / sum(pair[which].steps for pair in pairs)


def interval(pairs: Sequence[Pair], figure: Callable[[Sequence[Pair]], float]) -> str:
    rng = random.Random(0)
    found = sorted(figure(rng.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    low, high = found[_RESAMPLES // 40], found[-_RESAMPLES // 40]
    return f"{figure(pairs):.3f} ({low:.3f} to {high:.3f})"


def compare(client: httpx.Client, task: Task, count: int) -> None:
    pairs: list[Pair] = []
    for number, request in enumerate(workload(SEED, count, {task: 1.0})):
        order = _NAMES if number % 2 else _NAMES[::-1]
        answers = {name: ask(client, request, name) for name in order}
        pairs.append((answers["shipped"], answers["trained"]))
    equal = sum(shipped.text == trained.text for shipped, trained in pairs)
    rates = [f"{tokens_per_step(pairs, which):.2f}" for which in (0, 1)]
    print(f"{task}: {equal} of {count} answers equal; tokens per step {rates[0]} shipped, {rates[1]} trained")
    print("  tokens per step", interval(pairs, lambda some: tokens_per_step(some, 1) / tokens_per_step(some, 0)))
    print("  E2E latency    ", interval(pairs, lambda some: fmean(p[0].seconds / p[1].seconds for p in some)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path, help="folder of the trained draft")
    parser.add_argument("--task", choices=TASKS, nargs="+", required=True)
    parser.add_argument("--requests", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.yaml"
        file.write_text(manifest({"shipped": _SHIPPED, "trained": model_draft(args.draft)}))
        with running_system(file) as system, httpx.Client(base_url=system.gateway_url, timeout=120) as client:
            for name in _NAMES:
                for request in workload(SEED + 1, 3, {args.task[0]: 1.0}):
                    ask(client, request, name)  # opens connections, fills caches
            for task in args.task:
                compare(client, task, args.requests)


if __name__ == "__main__":
    main()
