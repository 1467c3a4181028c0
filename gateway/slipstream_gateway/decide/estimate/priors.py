"""Expectations without measurements. They are wide on purpose: a few requests outweigh each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slipstream_core.types import LengthBin, RequestProfile, TaskType

from slipstream_gateway.decide.estimate.curves import CurvePrior

# Log output tokens of a class by its length, if no request's own expectation is available.
_BIN_TOKENS: Mapping[str, float] = {LengthBin.SHORT: 16.0, LengthBin.MEDIUM: 75.0, LengthBin.LONG: 220.0}
_ANY_TOKENS = 100.0
# The classifier's length in a new deployment: half of the requests lie within a factor of 1.8.
PROFILE_LENGTH_VARIANCE = 0.9**2
LENGTH_SPREAD = 0.45**2
# A twentieth: if all answers of a class are alike, such as one label, some uncertainty remains.
LEAST_LENGTH_SPREAD = 0.05**2

# Predictable answers are copied, structured or code. The embedded pair has 0.59 to 0.84, 0.24 on rare tokens, and 0.29
# on one-line answers, which consist of significant tokens only.
_PREDICTABLE, _ORDINARY, _OPEN, _RARE, _SHORT = 0.8, 0.72, 0.65, 0.25, 0.3
_TASK_ACCEPTANCE: Mapping[str, float] = {
    TaskType.SUMMARIZATION: _PREDICTABLE,
    TaskType.CODE: _PREDICTABLE,
    TaskType.EXTRACTION: _PREDICTABLE,
    TaskType.REWRITING: _PREDICTABLE,
    TaskType.MATH_REASONING: _ORDINARY,
    TaskType.TRANSLATION: _ORDINARY,
}
ACCEPTANCE_VARIANCE = 0.15**2
LEAST_ACCEPTANCE = 0.02
# An answer with this share of rare tokens counts as rare, if the classifier gives no probability.
_RARE_SHARE = 0.25

# Only the ratios of times matter to a decision: all arms start with the same.
PLAIN_STEP = CurvePrior(base=0.02, base_spread=1.5, k=0.15, k_spread=0.1, noise=0.15)
# A step that verifies takes longer than a plain one even before its first draft token: more launches, more rows.
STEP_OVERHEAD = 1.2
STEP = PLAIN_STEP._replace(base=PLAIN_STEP.base * STEP_OVERHEAD)


def class_length(cold_class: str) -> float:
    """Log output tokens of a `task/length` class."""
    return math.log(_BIN_TOKENS.get(cold_class.rpartition("/")[2], _ANY_TOKENS))


def class_acceptance(cold_class: str) -> float:
    """β of a `task/length` class."""
    task, _, length = cold_class.partition("/")
    return _ordinary(task, length)


def profile_acceptance(profile: RequestProfile) -> float:
    """β of a request by its task and by its probability of a rare answer."""
    rare = profile.rare_probability or min(1.0, profile.rare_token_share / _RARE_SHARE)
    ordinary = _ordinary(profile.task, profile.length)
    return ordinary + rare * (min(_RARE, ordinary) - ordinary)


def _ordinary(task: str, length: str) -> float:
    return _SHORT if length == LengthBin.SHORT else _TASK_ACCEPTANCE.get(task, _OPEN)
