"""Trains a model and measures it on held-out sources."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from slipstream_gateway.decide.classify.model import TASKS, Model

from slipstream_tools.train.assemble import Fits, assemble, predict
from slipstream_tools.train.design import Design, Indices, design
from slipstream_tools.train.figures import Array, Figures, Predicted, confusion, macro_f1, measure
from slipstream_tools.train.fit import Linear, balance, fit_tasks
from slipstream_tools.train.heads import fit_heads
from slipstream_tools.train.phrasings import SOURCE, phrased_rows
from slipstream_tools.train.rows import Row

_TRAINED_PER_SOURCE_AND_TASK = 400
_MEASURED_PER_SOURCE_AND_TASK = 120
_PHRASED_WEIGHT = 1.2  # total weight of all phrasings relative to all rows
_BY_SOURCE = 0.6  # how much less a row of a large source weighs in the fit to tasks
_FOLDS = 6
_TEMPERATURES = (0.02, 4.0)

Progress = Callable[[str], None]
Mask = npt.NDArray[np.bool_]


class HeldOut(msgspec.Struct, frozen=True):
    """Figures on sources that the predicting model was not trained on: all rows, by fold, by source.

    `seen_sources` are the figures in distribution: on rows held out at random, whose sources the model was trained on.
    `excluded` are the figures of sources that are never trained on.
    """

    total: Figures
    seen_sources: Figures
    macro_f1: float | None
    folds: dict[str, Figures]
    sources: dict[str, Figures]
    excluded: dict[str, Figures]
    confusion: list[list[int]]


class Trained(NamedTuple):
    """`kept` names the parts of the base model that were kept for lack of training data. `held_out` is None for a
    single source."""

    model: Model
    held_out: HeldOut | None
    kept: tuple[str, ...]
    rows: int


class _Data(NamedTuple):
    """`labels` are -1 for a row without a task, figures are of those `measured`; `all_rows` are the file's."""

    rows: list[Row]
    design: Design
    labels: Indices
    used: Mask
    measured: Mask
    all_rows: Sequence[Row]
    seed: int


def train(
    rows: Sequence[Row], base: Callable[[], Model], *, excluded: Collection[str], seed: int, progress: Progress
) -> Trained:
    """A model fitted to `rows` without the sources `excluded`; deterministic for a seed.

    Parts without training data come from `base`.
    """
    data = _data(rows, excluded, seed)
    tasks = len({row.task for row, use in zip(data.rows, data.used, strict=True) if use and row.task is not None})
    folds = _folds(data.rows, data.used)
    measurable = tasks >= 2 and len(folds) >= 2
    predicted = None
    temperature = base().temperature
    if measurable:
        margins = np.zeros((len(data.rows), len(TASKS)))
        parts: list[tuple[Mask, Fits]] = []
        for number, fold in enumerate(folds, 1):
            progress(f"measuring on part {number} of {len(folds)} of the sources")
            fits = _fits(data, data.used & ~fold, base, tasks)
            margins[fold] = _margins(fits.tasks, data.design)[fold]
            parts.append((fold, fits))
        scored = data.measured & data.used & (data.labels >= 0)
        temperature = _temperature(margins, data.labels, scored)
        predicted = Predicted(np.zeros(margins.shape), *(np.zeros(len(margins)) for _ in Predicted._fields[1:]))
        for fold, fits in parts:
            others = scored & ~fold
            own = _temperature(margins, data.labels, others) if others.any() else temperature
            _copy(predicted, predict(fits, data.design, own), fold)
    progress("fitting the model")
    final = _fits(data, data.used, base, tasks)
    outside = data.measured & ~data.used
    report = None
    if predicted is not None:
        _copy(predicted, predict(final, data.design, temperature), outside)
        progress("measuring on a random part of all sources")
        report = _held_out(data, predicted, folds, _seen_sources(data, base, tasks, temperature))
    kept = (() if tasks >= 2 else ("task",)) + final.heads.missing
    return Trained(assemble(final, temperature, base), report, kept, int(data.used.sum()))


def _data(rows: Sequence[Row], excluded: Collection[str], seed: int) -> _Data:
    """Limits the number of rows per source and task."""
    rng = random.Random(seed)
    groups: dict[tuple[str, object], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.source, row.task].append(index)
    kept: list[int] = []
    measured: set[int] = set()
    for key in sorted(groups, key=str):
        rng.shuffle(groups[key])
        kept += groups[key][:_TRAINED_PER_SOURCE_AND_TASK]
        measured.update(groups[key][:_MEASURED_PER_SOURCE_AND_TASK])
    kept.sort()
    chosen = [rows[index] for index in kept]
    return _Data(
        rows=chosen,
        design=design(chosen),
        labels=np.array([-1 if row.task is None else TASKS.index(row.task) for row in chosen], np.int64),
        used=np.array([row.source not in excluded for row in chosen]),
        measured=np.array([index in measured for index in kept]),
        all_rows=rows,
        seed=seed,
    )


def _folds(rows: Sequence[Row], used: Mask) -> list[Mask]:
    """Masks of the sources that are held out together: large ones separate, each task spread as evenly as possible."""
    sizes: dict[str, Counter[object]] = defaultdict(Counter)
    for row, use in zip(rows, used, strict=True):
        if use:
            sizes[row.source][row.task] += 1
    loads: list[Counter[object]] = [Counter() for _ in range(min(_FOLDS, len(sizes)))]
    chosen: dict[str, int] = {}
    for source in sorted(sizes, key=lambda name: (-sum(sizes[name].values()), name)):
        counts = {task: min(count, _MEASURED_PER_SOURCE_AND_TASK) for task, count in sizes[source].items()}
        costs = [sum(count * (load[task] + 0.15 * load.total()) for task, count in counts.items()) for load in loads]
        chosen[source] = costs.index(min(costs))
        loads[chosen[source]].update(counts)
    return [np.array([chosen.get(row.source) == fold for row in rows]) & used for fold in range(len(loads))]


def _fits(data: _Data, mask: Mask, base: Callable[[], Model], tasks: int) -> Fits:
    """Fits to the rows of `mask`, and to phrasings around pieces of rows of the same sources."""
    own = np.flatnonzero(mask)
    heads = fit_heads([data.rows[index] for index in own], data.design, own)
    if tasks < 2:  # a single task cannot be fitted
        shipped = base()
        return Fits(Linear(shipped.table[:, : len(TASKS)], shipped.bias[: len(TASKS)]), heads)
    sources = {data.rows[index].source for index in own}
    phrased = phrased_rows([row for row in data.all_rows if row.source in sources], random.Random(data.seed))
    plain = own[data.labels[own] >= 0]
    labels = np.concatenate([data.labels[plain], [TASKS.index(row.task) for row in phrased if row.task in TASKS]])
    weights = [
        balance(data.labels[plain].tolist(), [data.rows[index].source for index in plain], by_source=_BY_SOURCE),
        balance([row.task for row in phrased], [SOURCE] * len(phrased)) * _PHRASED_WEIGHT,
    ]
    words = sparse.vstack([data.design.words[plain], design(phrased).words], format="csr")
    return Fits(fit_tasks(words, labels, np.concatenate(weights)), heads)


def _margins(fitted: Linear, found: Design) -> Array:
    return np.asarray(found.words @ fitted.weights + fitted.bias, np.float64)


def _copy(target: Predicted, source: Predicted, mask: Mask) -> None:
    for values, others in zip(target, source, strict=True):
        values[mask] = others[mask]


def _seen_sources(data: _Data, base: Callable[[], Model], tasks: int, temperature: float) -> Figures:
    """Figures on a sixth of the rows, drawn at random, by fits to the others."""
    drawn = np.random.default_rng(data.seed).random(len(data.rows)) < 1 / _FOLDS
    fits = _fits(data, data.used & ~drawn, base, tasks)
    return measure(*_part(data, predict(fits, data.design, temperature), data.measured & data.used & drawn))


def _part(data: _Data, predicted: Predicted, mask: Mask) -> tuple[list[Row], Predicted]:
    chosen = [row for row, use in zip(data.rows, mask, strict=True) if use]
    return chosen, Predicted(*(values[mask] for values in predicted))


def _held_out(data: _Data, predicted: Predicted, folds: Sequence[Mask], seen_sources: Figures) -> HeldOut:
    def part(mask: Mask) -> tuple[list[Row], Predicted]:
        return _part(data, predicted, mask)

    def by_source(mask: Mask) -> dict[str, Figures]:
        names = np.array([row.source for row in data.rows])
        return {str(name): measure(*part(mask & (names == name))) for name in sorted(set(names[mask]))}

    used = data.measured & data.used
    matrix = confusion(*part(used))
    return HeldOut(
        total=measure(*part(used)),
        macro_f1=macro_f1(matrix),
        seen_sources=seen_sources,
        folds={f"part {number}": measure(*part(used & fold)) for number, fold in enumerate(folds, 1)},
        sources=by_source(used),
        excluded=by_source(data.measured & ~data.used),
        confusion=matrix,
    )


def _temperature(margins: Array, labels: Indices, scored: Mask) -> float:
    """Scales the margins of the rows `scored`, held out, so that their probabilities are calibrated."""
    own, wanted = margins[scored], labels[scored]

    def loss(temperature: float) -> float:
        chances = softmax(own / temperature, axis=1)[np.arange(len(wanted)), wanted]
        return -float(np.log(np.maximum(chances, 1e-9)).mean())

    return float(minimize_scalar(loss, bounds=_TEMPERATURES, method="bounded").x)
