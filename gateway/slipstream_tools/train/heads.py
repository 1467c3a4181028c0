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
from slipstream_gateway.decide.classify.length import stated_length
from slipstream_gateway.decide.classify.model import HEADS, TASKS, Floats
from slipstream_gateway.decide.classify.prompt import COUNTS

from slipstream_tools.train.design import Design, Indices
from slipstream_tools.train.fit import balance, fit_head
from slipstream_tools.train.rows import OWN_KINDS, Row

_MIN_ROWS = 20
# Counts of a prompt reveal its corpus; they generalise for rare answers only. Words do so less there: a larger ridge.
_COUNTED = ("rare",)
_RIDGE = {"long": 1e-4, "rare": 1e-3, "speculate": 1e-4}
# How often the answers to a task are rare or worth speculating, before any row is seen. Corpora have few sources
# per task, and answers of their kind: people's are terse, and a benchmark's extraction is longer than a service's.
_STATED = {
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
# Tokens of a model's usual answer to a prompt of `size` 0 (55 tokens), and how their log grows with the size.
# Public sources cannot teach the first: models' answers to requests for code have 60 tokens in one and 900 in another.
_USUAL = {
    TaskType.SUMMARIZATION: (155.0, 0.25), TaskType.EXTRACTION: (70.0, 0.4), TaskType.CODE: (270.0, 0.12),
    TaskType.TRANSLATION: (70.0, 0.9), TaskType.CLASSIFICATION: (10.0, 0.1), TaskType.SHORT_QA: (30.0, 0.0),
    TaskType.MATH_REASONING: (260.0, 0.12), TaskType.CREATIVE_WRITING: (290.0, 0.12), TaskType.OPEN_CHAT: (320.0, 0.12),
    TaskType.REWRITING: (110.0, 0.4),
}  # fmt: skip
_LENGTH_PRIOR = 20.0  # weight of the usual length, in rows
_GROWTH_PRIOR = 40.0  # weight of its growth, in rows by the square of the log of their tokens


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
        if name in _STATED:
            by_task[:, column] = _by_task([rows[index] for index in known], values, _STATED[name])
    lengths, shares = _lengths(rows, found, chosen), _shares(rows)
    missing += [name for name, found_one in (("tokens", lengths), ("share", shares)) if found_one is None]
    return Heads(
        words,
        bias,
        counts,
        by_task,
        np.zeros((2, len(TASKS)), np.float32) if lengths is None else lengths,
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
        [1.0 if row.length_kind in OWN_KINDS else min(1.0, _SOURCE_ROWS / sizes[row.source, row.task]) for row in rows]
    )
    result = []
    for task in TASKS:
        own = np.array([row.task == task for row in rows])
        labelled, whole = (weights * values)[own].sum(), weights[own].sum()
        result.append(float((labelled + _STATED_ROWS * stated[task]) / (whole + _STATED_ROWS)))
    return result


def _lengths(rows: Sequence[Row], found: Design, chosen: Indices) -> Floats | None:
    """The `lengths` of a model; None without lengths.

    The growth is that within the sources, whose levels differ. Rows of the deployment itself correct the usual length.
    """
    prompts = [found.prompts[index] for index in chosen.tolist()]
    groups: dict[tuple[TaskType, str], list[int]] = defaultdict(list)
    for index, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        if row.tokens and row.task is not None and stated_length(prompt.text, prompt.system) is None:
            groups[row.task, row.source].append(index)
    if sum(map(len, groups.values())) < _MIN_ROWS:
        return None
    logs = np.log([row.tokens or 1 for row in rows])
    sizes = np.array([prompt.size for prompt in prompts])
    own = np.array([row.length_kind in OWN_KINDS for row in rows])
    lengths = np.zeros((2, len(TASKS)), np.float32)
    for column, task in enumerate(TASKS):
        usual, growth = math.log(_USUAL[task][0]), _USUAL[task][1]
        members = [np.array(group) for (of, _), group in groups.items() if of is task]
        covariance, variance = _GROWTH_PRIOR * growth, _GROWTH_PRIOR
        for group in members:
            weights = np.where(own[group], 1.0, min(1.0, _SOURCE_ROWS / group.size))
            spread = weights * (sizes[group] - sizes[group].mean())
            covariance, variance = covariance + spread @ logs[group], variance + spread @ sizes[group]
        growth = covariance / variance
        mine = np.array([index for group in members for index in group.tolist() if own[index]], np.int64)
        rest = logs[mine] - growth * sizes[mine] - usual
        lengths[:, column] = usual + rest.sum() / (mine.size + _LENGTH_PRIOR), growth
    return lengths


def _shares(rows: Sequence[Row]) -> Floats | None:
    """Mean share of rare tokens in answers that are not rare, and in those that are; None if one is missing."""
    common = [row.rare_share for row in rows if row.rare_share is not None and row.rare is False]
    rare = [row.rare_share for row in rows if row.rare_share is not None and row.rare]
    if not common or not rare:
        return None
    return np.array([np.mean(common), np.mean(rare)], np.float32)
