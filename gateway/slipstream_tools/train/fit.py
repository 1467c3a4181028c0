"""Linear fits by L-BFGS: a softmax over tasks, and logistic heads. Deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from slipstream_gateway.decide.classify.model import TASKS

from slipstream_tools.train.design import Floats, Indices

_TASK_RIDGE = 6e-6
_HEAD_RIDGE = 1e-4
_SMOOTHING = 0.05  # because some labels are wrong
_MIN_ROWS = 2  # a feature in fewer rows is ignored
_TASK_ITERATIONS, _HEAD_ITERATIONS = 50, 40

Array = npt.NDArray[np.float64]


class Linear(NamedTuple):
    """`weights` (features, K) and `bias` (K,)."""

    weights: Floats
    bias: Floats


def balance(keys: Sequence[object], sources: Sequence[str], *, by_source: float = 0.5) -> Array:
    """Weights that sum to 1: every key (task or label) has the same total weight, and a large source less weight per
    row."""
    counts = Counter(zip(sources, keys, strict=True))
    weights = np.array([counts[pair] ** -by_source for pair in zip(sources, keys, strict=True)])
    totals: Counter[object] = Counter()
    for key, weight in zip(keys, weights, strict=True):
        totals[key] += weight
    weights /= np.array([totals[key] for key in keys])
    return np.asarray(weights / weights.sum())


def fit_tasks(words: Any, labels: Indices, weights: Array) -> Linear:
    """Softmax of `words` (R, features) over `TASKS`; `labels` (R,) are indices into them."""
    targets = np.full((len(labels), len(TASKS)), _SMOOTHING / len(TASKS), np.float32)
    targets[np.arange(len(labels)), labels] += 1 - _SMOOTHING
    return _minimise(words, targets, weights, ridge=_TASK_RIDGE, iterations=_TASK_ITERATIONS)


def fit_head(inputs: Any, labels: npt.NDArray[np.bool_], weights: Array) -> Linear:
    """Logistic regression of `inputs` (R, features); `weights` of the result are (features, 1)."""
    return _minimise(
        inputs, labels.astype(np.float32)[:, None], weights, ridge=_HEAD_RIDGE, iterations=_HEAD_ITERATIONS
    )


def softmax(logits: npt.NDArray[Any]) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float64)


def sigmoid(logits: npt.NDArray[Any]) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0))), np.float64)


def _minimise(inputs: Any, targets: Floats, weights: Array, *, ridge: float, iterations: int) -> Linear:
    """Cross-entropy with a ridge: by softmax, or by the logistic function where `targets` has one column."""
    kept = np.flatnonzero(np.bincount(inputs.indices, minlength=inputs.shape[1]) >= _MIN_ROWS)
    columns, (features, outputs) = inputs[:, kept], (inputs.shape[1], targets.shape[1])
    transposed = columns.T.tocsr()
    weights32 = (weights / weights.sum()).astype(np.float32)[:, None]

    def loss(vector: Array) -> tuple[float, Array]:
        found = vector.astype(np.float32)
        table, bias = found[:-outputs].reshape(-1, outputs), found[-outputs:]
        logits = columns @ table + bias
        if outputs > 1:
            chances = softmax(logits).astype(np.float32)
            value = -(weights32 * targets * np.log(np.maximum(chances, 1e-12))).sum()
        else:
            chances = sigmoid(logits).astype(np.float32)
            value = (weights32 * (np.logaddexp(0.0, logits) - targets * logits)).sum()
        slope = weights32 * (chances - targets)
        gradient = np.concatenate([(transposed @ slope + ridge * table).ravel(), slope.sum(axis=0)])
        return float(value) + 0.5 * ridge * float((table * table).sum()), gradient.astype(np.float64)

    start = np.zeros((kept.size + 1) * outputs)
    solution = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 6})
    result = np.zeros((features, outputs), np.float32)
    result[kept] = solution.x[:-outputs].reshape(-1, outputs)
    return Linear(result, solution.x[-outputs:].astype(np.float32))
