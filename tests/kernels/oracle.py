"""What a row of logits means, token by token in NumPy: the float64 distribution that `verify` is measured against.

It shares nothing with the code under test. Adjustments are made in float32, one rounding for each operation, as
`LogitAdjustments` promises; what follows them is float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How one request samples and what it does to its logits first. The defaults change nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    prompt: tuple[int, ...] = ()

    @property
    def penalises(self) -> bool:
        """Whether it looks at the text so far."""
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)


def adjusted(logits: Floats, rules: Rules, output: Sequence[int], allowed: NDArray[np.bool_] | None = None) -> Floats:
    """`logits` float32 [V] after bias, penalties and mask, for a request that has written `output`."""
    scores = logits.astype(np.float32)
    for token, value in rules.bias.items():
        scores[token] += np.float32(value)
    counts = Counter(output)
    for token in sorted({*rules.prompt, *output}) if rules.penalises else ():
        x, times = scores[token], counts[token]
        x = x / np.float32(rules.repetition) if x > 0 else x * np.float32(rules.repetition)
        x = x - np.float32(rules.frequency) * np.float32(times)
        scores[token] = x - np.float32(rules.presence if times else 0.0)
    return scores if allowed is None else np.where(allowed, scores, np.float32(-math.inf))


def softmax(scores: Floats, temperature: float) -> Floats:
    """Probabilities of adjusted logits [V] before filters, float64. Greedy temperatures count as 1."""
    x = scores.astype(np.float64)
    weights = np.exp((x - x.max()) / (temperature or 1.0))
    return weights / weights.sum()


def distribution(scores: Floats, rules: Rules) -> Floats:
    """What a request samples from, float64 [V], given its row's adjusted logits with something above -inf."""
    if rules.temperature == 0:
        return one_hot(int(scores.argmax()), len(scores))
    kept = np.isfinite(scores)
    if rules.top_k:
        kept &= scores >= np.sort(scores)[-min(rules.top_k, len(scores))]
    if rules.top_p < 1:
        mass = np.where(kept, softmax(scores, rules.temperature), 0.0)
        mass /= mass.sum()
        before = np.array([mass[scores > score].sum() for score in scores])
        kept &= (before < rules.top_p) | (scores == scores.max())
    if rules.min_p:
        kept &= scores >= scores.max() + rules.temperature * math.log(rules.min_p)
    weights = np.where(kept, softmax(scores, rules.temperature), 0.0)
    return weights / weights.sum()


def one_hot(token: int, vocabulary: int) -> Floats:
    """All probability on one token, float64 [V]."""
    probabilities = np.zeros(vocabulary)
    probabilities[token] = 1.0
    return probabilities
