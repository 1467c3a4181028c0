"""Linear fits by L-BFGS: a support vector machine for tasks, and logistic heads. Deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit
from slipstream_gateway.decide.classify.model import TASKS

from slipstream_tools.train.design import Floats, Indices

_TASK_RIDGE = 2e-3
_MIN_ROWS = 2  # a feature in fewer rows is ignored
_TASK_ITERATIONS, _HEAD_ITERATIONS = 40, 60  # the fit to tasks changes no further

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
    """For each of `TASKS`, a support vector machine against all others, with squared hinge loss.

    `words` are (R, features), `labels` (R,) indices into `TASKS`. Features weigh by their inverse document frequency:
    otherwise the words that occur in every text would outweigh those of the instruction. The result takes `words`
    without these weights. Its outputs are margins: they need a temperature to be logits.
    """
    frequency = _inverse_frequency(words)
    signs = np.full((len(labels), len(TASKS)), -1.0, np.float32)
    signs[np.arange(len(labels)), labels] = 1.0
    weighed = words.multiply(frequency[None, :]).tocsr().astype(np.float32)

    def hinge(margins: Floats) -> tuple[Floats, Floats]:
        missing = np.maximum(1.0 - signs * margins, 0.0)
        return missing * missing, -2.0 * signs * missing

    fitted = _minimise(weighed, hinge, len(TASKS), weights, ridge=_TASK_RIDGE, iterations=_TASK_ITERATIONS)
    return Linear(fitted.weights * frequency[:, None], fitted.bias)


def fit_head(inputs: Any, labels: npt.NDArray[np.bool_], weights: Array, *, ridge: float) -> Linear:
    """Logistic regression of `inputs` (R, features); `weights` of the result are (features, 1)."""
    targets = labels.astype(np.float32)[:, None]

    def cross_entropy(logits: Floats) -> tuple[Floats, Floats]:
        return np.logaddexp(0.0, logits) - targets * logits, expit(logits).astype(np.float32) - targets

    return _minimise(inputs, cross_entropy, 1, weights, ridge=ridge, iterations=_HEAD_ITERATIONS)


def _inverse_frequency(words: Any) -> Floats:
    """By feature, the log of the share of rows that have it, inverted, plus 1."""
    rows, features = words.shape
    having = np.bincount(words.indices, minlength=features)
    return np.asarray(np.log((rows + 1.0) / (having + 1.0)) + 1.0, np.float32)


def _minimise(
    inputs: Any,
    loss: Callable[[Floats], tuple[Floats, Floats]],
    outputs: int,
    weights: Array,
    *,
    ridge: float,
    iterations: int,
) -> Linear:
    """The weighted mean of `loss`, with a ridge. `loss` takes the outputs (R, K) and returns the loss of each, and its
    slope."""
    kept = np.flatnonzero(np.bincount(inputs.indices, minlength=inputs.shape[1]) >= _MIN_ROWS)
    columns, features = inputs[:, kept], inputs.shape[1]
    transposed = columns.T.tocsr()
    weights32 = (weights / weights.sum()).astype(np.float32)[:, None]

    def objective(vector: Array) -> tuple[float, Array]:
        found = vector.astype(np.float32)
        table, bias = found[:-outputs].reshape(-1, outputs), found[-outputs:]
        losses, slopes = loss(columns @ table + bias)
        slopes = weights32 * slopes
        gradient = np.concatenate([(transposed @ slopes + ridge * table).ravel(), slopes.sum(axis=0)])
        value = float((weights32 * losses).sum()) + 0.5 * ridge * float((table * table).sum())
        return value, gradient.astype(np.float64)

    start = np.zeros((kept.size + 1) * outputs)
    solution = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 10})
    result = np.zeros((features, outputs), np.float32)
    result[kept] = solution.x[:-outputs].reshape(-1, outputs)
    return Linear(result, solution.x[-outputs:].astype(np.float32))
