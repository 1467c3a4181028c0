"""The report of a training, as Markdown for people and as JSON for machines."""

from __future__ import annotations

import json

import msgspec
from slipstream_gateway.decide.classify.model import TASKS

from slipstream_tools.train.figures import Figures
from slipstream_tools.train.trainer import HeldOut, Trained

_HEADS = {
    "task": "the task",
    "long": "whether an answer is long",
    "rare": "whether an answer is full of rare tokens",
    "tokens": "the length",
    "speculate": "whether speculation pays",
    "share": "the share of rare tokens",
}
_COLUMNS = (
    "rows", "accuracy", "clear labels", "long AUC", "rare AUC", "speculate AUC",
    "length bins", "long precision", "long recall", "tau", "log-length error", "of a constant",
)  # fmt: skip


def as_markdown(trained: Trained) -> str:
    """Tables of the figures on held-out sources, and the unchanged parts."""
    lines = [f"Trained on {trained.rows} rows."]
    lines += [
        f"{_HEADS[name].capitalize()}: no training data, so the shipped model's is kept." for name in trained.kept
    ]
    if trained.held_out is None:
        lines += ["Not measured: a measurement requires rows with tasks from at least two sources, one to be held out."]
    else:
        lines += _tables(trained.held_out)
    return "\n".join(lines)


def as_json(trained: Trained) -> str:
    """The report as one JSON object."""
    held_out = trained.held_out
    value = None if held_out is None else {**msgspec.to_builtins(held_out), "tasks": list(TASKS)}
    return json.dumps({"rows": trained.rows, "kept": list(trained.kept), "held_out": value}, indent=2) + "\n"


def _tables(held_out: HeldOut) -> list[str]:
    lines = ["", "Held out (sources; accuracy counts acceptable alternatives)", ""]
    lines += ["| held out | " + " | ".join(_COLUMNS) + " |", "|---|" + "---:|" * len(_COLUMNS)]
    lines += [_line(name, figures) for name, figures in held_out.folds.items()]
    lines.append(_line("**all rows**", held_out.total))
    lines.append(_line("a sixth at random (sources seen)", held_out.seen_sources))
    lines += [_line(f"{name} (never trained on)", figures) for name, figures in held_out.excluded.items()]
    lines += [_line(name, figures) for name, figures in held_out.sources.items()]
    lines += [
        "",
        f"Mean accuracy over sources {_share(mean_accuracy(held_out))}, macro-F1 {_share(held_out.macro_f1)}.",
        "",
    ]
    lines += ["Confusion (lines: label, columns: prediction)", ""]
    lines += ["| | " + " | ".join(TASKS) + " |", "|---|" + "---:|" * len(TASKS)]
    for task, counts in zip(TASKS, held_out.confusion, strict=True):
        lines.append(f"| {task} | " + " | ".join(map(str, counts)) + " |")
    return lines


def mean_accuracy(held_out: HeldOut) -> float | None:
    """Every source has the same weight, whatever its number of rows."""
    found = [figures.accuracy for figures in held_out.sources.values() if figures.accuracy is not None]
    return sum(found) / len(found) if found else None


def _line(name: str, figures: Figures) -> str:
    shares = " | ".join(_share(value) for value in msgspec.structs.astuple(figures)[1:])
    return f"| {name} | {figures.rows} | {shares} |"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
