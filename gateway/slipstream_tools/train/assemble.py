"""Turns fits into a model, and computes predictions for many rows at once, with the same sums as `LinearClassifier`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, softmax
from slipstream_gateway.decide.classify.length import expected_tokens, stated_length
from slipstream_gateway.decide.classify.model import HEADS, SHARES, TASK_WEIGHT, TASKS, Model

from slipstream_tools.train.design import Design
from slipstream_tools.train.figures import Predicted
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
    direct = found.words @ heads.words + heads.bias + found.counts @ heads.counts
    long, rare, speculate = expit(direct + TASK_WEIGHT * logit(tasks @ heads.by_task.clip(*SHARES))).T
    tokens = [
        expected_tokens(TASKS[best], prompt, stated_length(prompt.text, prompt.system), heads.lengths[best])
        for best, prompt in zip(tasks.argmax(axis=1).tolist(), found.prompts, strict=True)
    ]
    return Predicted(tasks, long, rare, speculate, np.array(tokens))


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
