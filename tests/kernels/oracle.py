"""What a row of logits means, token by token in NumPy: its float64 distribution and the token that is drawn from it.

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

TOLERANCE = 1e-5
"""The share of the winner's ratio within which float32 may take another winner for a race."""

_WORD = 2**64 - 1


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
        before = mass_above(scores, mass)
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


def mass_above(scores: Floats, mass: Floats) -> Floats:
    """For each token, the `mass` of all tokens with a higher score: float64 [V]."""
    values, at = np.unique(scores, return_inverse=True)
    by_value = np.bincount(at, mass, len(values))
    above = np.append(by_value[::-1].cumsum()[::-1][1:], 0.0)
    return above[at]


def draw(probabilities: Floats, seed: int, position: int) -> tuple[int, bool]:
    """The token that (seed, position) draws, and whether another one is within rounding.

    The token id is drawn digit by digit: thousands (of 4,096), groups of 64, tokens of a group. Each digit is the one
    with the largest weight per exponential number; the numbers of tokens come first, then those of groups.
    """
    weights = np.pad(probabilities, (0, -len(probabilities) % 4096)).reshape(-1, 64, 64)
    tile, tile_close = _race(weights.sum((1, 2)), seed, position, 128)
    group, group_close = _race(weights[tile].sum(1), seed, position, 64)
    token, token_close = _race(weights[tile, group], seed, position, 0)
    return 4096 * tile + 64 * group + token, tile_close or group_close or token_close


def _race(weights: Floats, seed: int, position: int, first: int) -> tuple[int, bool]:
    ratios = np.array([w and w / exponential(seed, position, first + i) for i, w in enumerate(weights.tolist())])
    return int(ratios.argmax()), bool((ratios > (1 - TOLERANCE) * ratios.max()).sum() > 1)


def exponential(seed: int, position: int, index: int) -> float:
    """Number `index` of the noise of (seed, position): SplitMix64 from a key that is mixed from both."""
    key = _mix(_mix(seed) + position * 0x9E3779B97F4A7C15)
    bits = _mix(key + (index + 1) * 0x9E3779B97F4A7C15) >> 12
    return -math.log((bits + 0.5) / 2**52)


def _mix(word: int) -> int:
    word &= _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)
