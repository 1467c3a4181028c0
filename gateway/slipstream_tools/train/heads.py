"""Fits the outputs beside the task: long or not, rare or not, worth speculating or not, and two usual sizes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from slipstream_core.types import MEDIUM_MAX_TOKENS, TaskType
from slipstream_gateway.decide.classify.hashing import TABLE_ROWS
from slipstream_gateway.decide.classify.length import usual_tokens
from slipstream_gateway.decide.classify.model import HEADS, TASKS, Floats
from slipstream_gateway.decide.classify.prompt import COUNTS

from slipstream_tools.train.design import Design, Indices
from slipstream_tools.train.fit import balance, fit_head
from slipstream_tools.train.rows import Row

_MIN_ROWS = 20
# Counts of a prompt reveal its corpus; they generalise for rare answers only. Words do so less there: a larger ridge.
_COUNTED = ("rare",)
_RIDGE = {"long": 1e-4, "rare": 1e-3, "speculate": 1e-4}
# How often the answers to a task are long, rare or worth speculating, before any row is seen. Corpora have few sources
# per task, and answers of their kind: people's are terse, and a benchmark's extraction is longer than a service's.
_STATED = {
    "long": {
        TaskType.SUMMARIZATION: 0.5, TaskType.EXTRACTION: 0.25, TaskType.CODE: 0.7, TaskType.TRANSLATION: 0.25,
        TaskType.CLASSIFICATION: 0.02, TaskType.SHORT_QA: 0.03, TaskType.MATH_REASONING: 0.65,
        TaskType.CREATIVE_WRITING: 0.85, TaskType.OPEN_CHAT: 0.8, TaskType.REWRITING: 0.4,
    },
    "rare": {
        TaskType.SUMMARIZATION: 0.25, TaskType.EXTRACTION: 0.8, TaskType.CODE: 0.03, TaskType.TRANSLATION: 0.4,
        TaskType.CLASSIFICATION: 0.03, TaskType.SHORT_QA: 0.5, TaskType.MATH_REASONING: 0.1,
        TaskType.CREATIVE_WRITING: 0.1, TaskType.OPEN_CHAT: 0.12, TaskType.REWRITING: 0.5,
    },
    "speculate": {
        TaskType.SUMMARIZATION: 0.8, TaskType.EXTRACTION: 0.2, TaskType.CODE: 0.9, TaskType.TRANSLATION: 0.4,
        TaskType.CLASSIFICATION: 0.02, TaskType.SHORT_QA: 0.05, TaskType.MATH_REASONING: 0.9,
        TaskType.CREATIVE_WRITING: 0.95, TaskType.OPEN_CHAT: 0.93, TaskType.REWRITING: 0.6,
    },
}  # fmt: skip
_STATED_ROWS = 400.0  # weight of a stated share, in rows
_SOURCE_ROWS = 40.0  # most rows that a public source counts as, per task
_LENGTH_PRIOR = 20.0  # weight of the usual length, in rows
# Lengths from a deployment: human reference answers and single answers of old models are terser.
_OWN_KINDS = ("none", "llm_median")


class Heads(NamedTuple):
    """Arrays of a `Model`; `missing` are those of `HEADS`, "tokens" and "share" without training data."""

    words: Floats
    bias: Floats
    counts: Floats
    by_task: Floats
    lengths: Floats
    shares: Floats
    missing: tuple[str, ...]


def fit_heads(rows: Sequence[Row], found: Design, chosen: Indices) -> Heads:
    """The heads for `rows`, which are those of `found` with the indices `chosen`."""
    words = np.zeros((TABLE_ROWS, len(HEADS)), np.float32)
    bias = np.zeros(len(HEADS), np.float32)
    counts = np.zeros((COUNTS, len(HEADS)), np.float32)
    by_task = np.zeros((len(TASKS), len(HEADS)), np.float32)
    missing: list[str] = []
    for column, name in enumerate(HEADS):
        labels = [_label(row, name) for row in rows]
        known = [index for index, label in enumerate(labels) if label is not None]
        values = np.array([bool(labels[index]) for index in known], dtype=bool)
        if len(known) < _MIN_ROWS or values.all() or not values.any():
            missing.append(name)
            continue
        weights = balance(values.tolist(), [rows[index].source for index in known])
        inputs = found.words[chosen[known]]
        if name in _COUNTED:
            inputs = sparse.hstack([inputs, sparse.csr_matrix(found.counts[chosen[known]])], format="csr")
        fitted = fit_head(inputs, values, weights, ridge=_RIDGE[name])
        words[:, column], bias[column] = fitted.weights[:TABLE_ROWS, 0], fitted.bias[0]
        if name in _COUNTED:
            counts[:, column] = fitted.weights[TABLE_ROWS:, 0]
        by_task[:, column] = _by_task([rows[index] for index in known], values, _STATED[name])
    lengths, shares = _lengths(rows, found, chosen), _shares(rows)
    missing += [name for name, found_one in (("tokens", lengths), ("share", shares)) if found_one is None]
    return Heads(
        words,
        bias,
        counts,
        by_task,
        np.ones(len(TASKS), np.float32) if lengths is None else lengths,
        np.zeros(2, np.float32) if shares is None else shares,
        tuple(missing),
    )


def _label(row: Row, head: str) -> bool | None:
    if head == "rare":
        return row.rare
    if head == "speculate":
        return row.speculate
    return None if row.tokens is None else row.tokens > MEDIUM_MAX_TOKENS


def _by_task(rows: Sequence[Row], values: npt.NDArray[np.bool_], stated: Mapping[TaskType, float]) -> list[float]:
    """The share of a task's answers with the label: the stated share, and that of `rows` as far as there are any.

    Rows of the deployment itself count in full; the rows of a public source count as `_SOURCE_ROWS` at most.
    """
    sizes = Counter((row.source, row.task) for row in rows)
    weights = np.array(
        [1.0 if row.length_kind in _OWN_KINDS else min(1.0, _SOURCE_ROWS / sizes[row.source, row.task]) for row in rows]
    )
    result = []
    for task in TASKS:
        own = np.array([row.task == task for row in rows])
        labelled, whole = (weights * values)[own].sum(), weights[own].sum()
        result.append(float((labelled + _STATED_ROWS * stated[task]) / (whole + _STATED_ROWS)))
    return result


def _lengths(rows: Sequence[Row], found: Design, chosen: Indices) -> Floats | None:
    """By task, the factor from the usual length to that of the rows; None without lengths of a model."""
    logs: dict[object, list[float]] = defaultdict(list)
    for index, row in zip(chosen.tolist(), rows, strict=True):
        if row.tokens and row.task is not None and row.length_kind in _OWN_KINDS:
            logs[row.task].append(math.log(row.tokens / usual_tokens(row.task, found.prompts[index])))
    if sum(map(len, logs.values())) < _MIN_ROWS:
        return None
    return np.array([math.exp(sum(logs[task]) / (len(logs[task]) + _LENGTH_PRIOR)) for task in TASKS], np.float32)


def _shares(rows: Sequence[Row]) -> Floats | None:
    """Mean share of rare tokens in answers that are not rare, and in those that are; None if one is missing."""
    common = [row.rare_share for row in rows if row.rare_share is not None and row.rare is False]
    rare = [row.rare_share for row in rows if row.rare_share is not None and row.rare]
    if not common or not rare:
        return None
    return np.array([np.mean(common), np.mean(rare)], np.float32)
