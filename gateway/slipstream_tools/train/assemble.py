"""Turns fits into a model, and computes predictions for many rows at once, with the same sums as `LinearClassifier`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, softmax
from slipstream_core.types import MEDIUM_MAX_TOKENS
from slipstream_gateway.decide.classify.length import in_conversation, stated_length
from slipstream_gateway.decide.classify.model import (
    HEADS,
    LENGTH_BY_WORDS,
    LENGTH_WEIGHTS,
    MAX_TOKENS,
    SHARES,
    STATED_SLOPE,
    TASK_WEIGHTS,
    TASKS,
    Model,
)

from slipstream_tools.train.design import Design
from slipstream_tools.train.figures import Array, Predicted
from slipstream_tools.train.fit import Linear
from slipstream_tools.train.heads import Heads


class Fits(NamedTuple):
    """The fits to one set of rows."""

    tasks: Linear
    heads: Heads


def predict(fits: Fits, found: Design, temperature: float) -> Predicted:
    """The probabilities and the expected length for every row of `found`."""
    tasks = softmax((found.words @ fits.tasks.weights + fits.tasks.bias) / temperature, axis=1)
    heads = fits.heads
    words = found.words @ heads.words + heads.bias
    sizes = np.array([prompt.size for prompt in found.prompts])
    usual, growth = heads.lengths
    median = _medians(usual + np.outer(sizes, growth), tasks)
    tokens = np.exp(np.clip(median + LENGTH_BY_WORDS * words[:, 0], 0.0, math.log(MAX_TOKENS)))
    stated = [stated_length(prompt.text, prompt.system) for prompt in found.prompts]
    for index, (prompt, bounds) in enumerate(zip(found.prompts, stated, strict=True)):
        tokens[index] = in_conversation(tokens[index], prompt)
        if bounds is not None:
            tokens[index] = min(max(tokens[index], bounds.least), bounds.most, MAX_TOKENS)
    lengths = np.log(tokens / MEDIUM_MAX_TOKENS)
    direct = words + found.counts @ heads.counts + np.outer(lengths, LENGTH_WEIGHTS)
    long, rare, speculate = expit(direct + TASK_WEIGHTS * logit(tasks @ heads.by_task.clip(*SHARES))).T
    is_stated = [bounds is not None for bounds in stated]
    return Predicted(tasks, np.where(is_stated, expit(STATED_SLOPE * lengths), long), rare, speculate, tokens)


def _medians(values: Array, chances: Array) -> Array:
    """The median of each row of `values` by their `chances`, interpolated."""
    order = values.argsort(axis=1)
    values, chances = np.take_along_axis(values, order, axis=1), np.take_along_axis(chances, order, axis=1)
    middles = chances.cumsum(axis=1) - 0.5 * chances
    return np.array([np.interp(0.5, middle, row) for middle, row in zip(middles, values, strict=True)])


def assemble(fits: Fits, temperature: float, base: Callable[[], Model]) -> Model:
    """The model; parts missing in the fit come from `base`."""
    heads = fits.heads
    table = np.hstack([fits.tasks.weights, heads.words])
    bias = np.concatenate([fits.tasks.bias, heads.bias])
    counts, by_task, lengths, shares = heads.counts.copy(), heads.by_task.copy(), heads.lengths, heads.shares
    for name in heads.missing:
        shipped = base()
        if name in HEADS:
            column = HEADS.index(name)
            table[:, len(TASKS) + column] = shipped.table[:, len(TASKS) + column]
            bias[len(TASKS) + column] = shipped.bias[len(TASKS) + column]
            counts[:, column], by_task[:, column] = shipped.counts[:, column], shipped.by_task[:, column]
        elif name == "tokens":
            lengths = shipped.lengths
        else:
            shares = shipped.shares
    return Model(
        table=table.astype(np.float32),
        bias=bias.astype(np.float32),
        temperature=temperature,
        counts=counts,
        by_task=by_task,
        lengths=lengths,
        shares=shares,
    )
