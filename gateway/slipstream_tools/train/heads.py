"""Fits the outputs beside the task: long or not, rare or not, worth speculating or not, and two usual sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from slipstream_core.types import MEDIUM_MAX_TOKENS
from slipstream_gateway.decide.classify.hashing import TABLE_ROWS
from slipstream_gateway.decide.classify.length import usual_tokens
from slipstream_gateway.decide.classify.model import HEADS, TASKS, Floats
from slipstream_gateway.decide.classify.prompt import COUNTS

from slipstream_tools.train.design import Design, Indices
from slipstream_tools.train.fit import Array, balance, fit_head
from slipstream_tools.train.rows import Row

_MIN_ROWS = 20
_COUNT_SCALE = 0.3  # weight of counts relative to words
# Counts of a prompt reveal its corpus; they generalise for rare answers only.
_COUNTED = ("rare",)
_TABLE_PRIOR = 20.0  # weight of the mean over all tasks, in rows
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
            scaled = sparse.csr_matrix(found.counts[chosen[known]] * np.float32(_COUNT_SCALE))
            inputs = sparse.hstack([inputs, scaled], format="csr")
        fitted = fit_head(inputs, values, weights)
        words[:, column], bias[column] = fitted.weights[:TABLE_ROWS, 0], fitted.bias[0]
        if name in _COUNTED:
            counts[:, column] = fitted.weights[TABLE_ROWS:, 0] * _COUNT_SCALE
        by_task[:, column] = _table([rows[index] for index in known], values, weights)
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


def _table(rows: Sequence[Row], values: npt.NDArray[np.bool_], weights: Array) -> list[float]:
    """The share of a task's answers with the label, shrunk to the mean for few rows."""
    scaled = weights * len(rows)
    mean = float((scaled * values).sum() / scaled.sum())
    result = []
    for task in TASKS:
        own = np.array([row.task == task for row in rows])
        result.append(float(((scaled * values)[own].sum() + _TABLE_PRIOR * mean) / (scaled[own].sum() + _TABLE_PRIOR)))
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
