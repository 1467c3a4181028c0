"""Quality measures of predictions: accuracy, confusion, AUC, lengths. Independent of model and fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau, rankdata
from slipstream_core.types import MEDIUM_MAX_TOKENS, SHORT_MAX_TOKENS
from slipstream_gateway.decide.classify.model import TASKS

from slipstream_tools.train.rows import MODEL_KINDS, Row

Array = npt.NDArray[np.float64]


class Predicted(NamedTuple):
    """Per row: the task's probabilities (R, C), and those of a long answer, of a rare one, and of paying speculation
    (R,), and the expected tokens of the answer (R,)."""

    tasks: Array
    long: Array
    rare: Array
    speculate: Array
    tokens: Array


class Lengths(NamedTuple):
    """Expected lengths against actual ones; None if there are no rows to measure by.

    `bins` is the accuracy over the three bins, `tau` Kendall's rank correlation (tau-b). `log_error` is the mean error
    of the log of the length, `constant_error` that of the best constant, both over answers of models.
    """

    bins: float | None
    long_precision: float | None
    long_recall: float | None
    tau: float | None
    log_error: float | None
    constant_error: float | None


class Figures(msgspec.Struct, frozen=True):
    """None if there are no rows to measure by, or all have one label. The last six are those of `Lengths`."""

    rows: int
    accuracy: float | None
    clear_accuracy: float | None
    long_auc: float | None
    rare_auc: float | None
    route_auc: float | None
    bins: float | None
    long_precision: float | None
    long_recall: float | None
    tau: float | None
    log_error: float | None
    constant_error: float | None


def measure(rows: Sequence[Row], predicted: Predicted) -> Figures:
    """Accuracy counts `alternatives` as correct; `clear_accuracy` is over rows without any."""
    best = predicted.tasks.argmax(axis=1)
    labelled = [index for index, row in enumerate(rows) if row.task is not None]
    right = {index: _accepted(rows[index], int(best[index])) for index in labelled}
    clear = [right[index] for index in labelled if not rows[index].alternatives]
    return Figures(
        rows=len(rows),
        accuracy=_mean(list(right.values())),
        clear_accuracy=_mean(clear),
        long_auc=auc(predicted.long, [None if row.tokens is None else row.tokens > MEDIUM_MAX_TOKENS for row in rows]),
        rare_auc=auc(predicted.rare, [row.rare for row in rows]),
        route_auc=auc(predicted.speculate, [row.speculate for row in rows]),
        **lengths(rows, predicted.tokens)._asdict(),
    )


def lengths(rows: Sequence[Row], expected: Array) -> Lengths:
    """The figures of `expected` (R,) over the rows that have a length."""
    known = [index for index, row in enumerate(rows) if row.tokens is not None]
    actual = np.array([rows[index].tokens for index in known], np.float64)
    own = expected[known]
    edges = (SHORT_MAX_TOKENS, MEDIUM_MAX_TOKENS)
    same = np.digitize(own, edges, right=True) == np.digitize(actual, edges, right=True)
    is_long, called_long = actual > MEDIUM_MAX_TOKENS, own > MEDIUM_MAX_TOKENS
    tau: Any = kendalltau(own, actual).statistic if len(known) > 1 else np.nan
    of_models = np.array([rows[index].length_kind in MODEL_KINDS for index in known], dtype=bool)
    logs = np.log(np.maximum(actual[of_models], 1.0))
    return Lengths(
        bins=_mean(same.tolist()),
        long_precision=_mean(is_long[called_long].tolist()),
        long_recall=_mean(called_long[is_long].tolist()),
        tau=float(tau) if np.isfinite(tau) else None,
        log_error=_mean(np.abs(np.log(own[of_models]) - logs).tolist()),
        constant_error=_mean(np.abs(logs - np.median(logs)).tolist()) if logs.size else None,
    )


def confusion(rows: Sequence[Row], predicted: Predicted) -> list[list[int]]:
    """Row counts by task (line) and predicted task (column), in the order of `TASKS`."""
    counts = Counter((row.task, int(best)) for row, best in zip(rows, predicted.tasks.argmax(axis=1), strict=True))
    return [[counts[task, column] for column in range(len(TASKS))] for task in TASKS]


def macro_f1(matrix: Sequence[Sequence[int]]) -> float | None:
    """Mean F1 over the tasks that occur."""
    table = np.array(matrix)
    occur = table.sum(axis=1) > 0
    if not occur.any():
        return None
    return float((2 * table.diagonal() / np.maximum(table.sum(axis=0) + table.sum(axis=1), 1))[occur].mean())


def auc(scores: Array, labels: Sequence[bool | None]) -> float | None:
    """The probability that a row with the label has a higher score than one without; None if either is missing."""
    known = np.array([label is not None for label in labels], dtype=bool)
    positive = np.array([bool(label) for label in labels], dtype=bool)[known]
    yes, no = int(positive.sum()), int((~positive).sum())
    if not yes or not no:
        return None
    ranks: Any = rankdata(scores[known])
    return float((ranks[positive].sum() - yes * (yes + 1) / 2) / (yes * no))


def _accepted(row: Row, best: int) -> bool:
    return TASKS[best] == row.task or TASKS[best] in row.alternatives


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
