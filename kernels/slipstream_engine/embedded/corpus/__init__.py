"""The training corpus: contact-centre tasks, generated from a seed, without external text.

`example(seed, index, split)` is a pure function, so the corpus needs no file and training can resume at any example.
Held-out examples are from another split and use other names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from .code import make_python, make_sql
from .conversations import make_summary
from .entities import World
from .example import TASKS, Example, Message, Split, Task
from .notes import make_notes
from .records import make_extraction, make_status
from .rehearsal import make_repeat
from .tickets import make_json, make_label, make_reply

__all__ = ["DEFAULT_MIX", "TASKS", "Example", "Message", "Split", "Task", "example", "examples", "training_mix"]

_MAKERS: Mapping[Task, Callable[[random.Random, World], Example]] = {
    "summary": make_summary, "json": make_json, "reply": make_reply, "sql": make_sql, "python": make_python,
    "status": make_status, "label": make_label, "extraction": make_extraction, "notes": make_notes,
    "repeat": make_repeat,
}  # fmt: skip

# Shares of examples, not of tokens. Summaries are the product's main class. The model learns copying from extraction
# and status, which are short and therefore cheap.
DEFAULT_MIX: Mapping[Task, float] = {
    "summary": 0.24, "json": 0.15, "reply": 0.11, "sql": 0.10, "python": 0.06,
    "status": 0.10, "label": 0.07, "extraction": 0.12, "notes": 0.05,
}  # fmt: skip


def training_mix(repeat: float, boost: Mapping[Task, float] | None = None) -> Mapping[Task, float]:
    """The default mix with `repeat` copying exercises per other example, and some shares multiplied by `boost`."""
    factors = boost or {}
    return {**{task: share * factors.get(task, 1.0) for task, share in DEFAULT_MIX.items()}, "repeat": repeat}


def example(seed: int, index: int, split: Split = "train", mix: Mapping[Task, float] | None = None) -> Example:
    """The example at `index` of the stream `(seed, split)`."""
    rng = random.Random(f"{split}/{seed}/{index}")
    shares = DEFAULT_MIX if mix is None else mix
    task = rng.choices(list(shares), weights=list(shares.values()))[0]
    return _MAKERS[task](rng, World(rng, held_out=split == "held_out"))


def examples(
    seed: int, split: Split = "train", *, start: int = 0, mix: Mapping[Task, float] | None = None
) -> Iterator[Example]:
    """Infinite stream of examples from index `start` on."""
    index = start
    while True:
        yield example(seed, index, split, mix)
        index += 1
