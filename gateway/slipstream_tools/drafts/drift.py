"""Whether a class's draft has become worse, by the class's own history.

An answer counts with its tokens per step of the target. Load lowers them, too: a busy engine verifies fewer tokens, of
which more are accepted. A draft that no longer knows the traffic has fewer tokens per step, and no higher acceptance.
"""

from __future__ import annotations

import datetime
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

WINDOW = 200
"""Answers that are compared with those before them."""
ESTABLISHED = 5 * WINDOW
"""Answers of a pair, after which a class that was not among them is new traffic."""
_NEW_SHARE = 0.1  # of the pair's answers, below which a class is rare rather than new
_ENOUGH = 0.9 * WINDOW  # weight of a history to compare with: that of a window has faded by some answers
_LEAST_LOSS = 1.1  # ratio of tokens per step
_SURE = 5.0  # standard errors: looks are many
_KEPT = 1.0 - 1.0 / 5000.0  # of the history, after each answer


class Answer(NamedTuple):
    """A speculative answer. `tokens` are those of the output, `steps` the target's passes."""

    time: datetime.datetime
    tokens: int
    steps: int
    drafted: int
    accepted: int


class Drift(NamedTuple):
    """The tokens per step of a class have fallen: geometric means over answers. `since`: the time of the first of the
    answers that show it; `time`: that of the last one."""

    request_class: str
    since: datetime.datetime
    time: datetime.datetime
    before: float
    after: float


class _History:
    """Mean and variance of the logarithm of tokens per step, and sums for the acceptance. Old answers fade."""

    def __init__(self) -> None:
        self.weight = self.mean = self.square = self.drafted = self.accepted = 0.0

    def add(self, answer: Answer) -> None:
        value = math.log(answer.tokens / answer.steps)
        self.weight = self.weight * _KEPT + 1.0
        before, self.mean = self.mean, self.mean + (value - self.mean) / self.weight
        self.square = self.square * _KEPT + (value - before) * (value - self.mean)
        self.drafted = self.drafted * _KEPT + answer.drafted
        self.accepted = self.accepted * _KEPT + answer.accepted

    @property
    def error(self) -> float:
        """The squared standard error of the mean."""
        return self.square / self.weight**2

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


class DriftDetector:
    """Takes answers in the order of their times. Answers up to the time in `known`, by class, belong to the history and
    show no drift any more."""

    def __init__(self, known: Mapping[str, datetime.datetime]) -> None:
        self._known = dict(known)
        self._all = _History()
        self._histories: dict[str, _History] = {}
        self._recent: dict[str, deque[Answer]] = {}
        self._new: dict[str, int] = {}  # new classes, and the pair's answers before their first one
        self._suspected: dict[str, _History] = {}
        self._count = 0

    def add(self, request_class: str, answer: Answer) -> Drift | None:
        """The drift that this answer completes: two windows in a row are worse than what was before. New traffic, of a
        class that was not among the first `ESTABLISHED` answers and is not rare, is compared with all classes together
        until it has a history."""
        if request_class not in self._recent and self._count >= ESTABLISHED:
            self._new[request_class] = self._count
        self._count += 1
        recent = self._recent.setdefault(request_class, deque())
        judged_until = self._known.get(request_class)
        if judged_until is not None and answer.time > judged_until:
            del self._known[request_class]
            self._begin(request_class)
        recent.append(answer)
        if len(recent) > WINDOW:
            oldest = recent.popleft()
            self._all.add(oldest)
            self._histories.setdefault(request_class, _History()).add(oldest)
        if len(recent) < WINDOW or request_class in self._known:
            return None
        if (
            request_class not in self._suspected
            and (self._count - self._new.get(request_class, 0)) > WINDOW / _NEW_SHARE
        ):
            self._new.pop(request_class, None)
        drift = self._compared(request_class, recent)
        if drift is None:
            self._suspected.pop(request_class, None)
        elif request_class in self._suspected:
            del self._suspected[request_class]
            self._begin(request_class)
            return drift
        else:  # the answers at hand are of both sides of the change: the next ones show it alone
            self._suspected[request_class] = self._reference(request_class)
            recent.clear()
        return None

    def _begin(self, request_class: str) -> None:
        """The last answers are the history of what follows."""
        self._new.pop(request_class, None)
        recent = self._recent[request_class]
        self._histories[request_class] = _history_of(recent)
        recent.clear()

    def _reference(self, request_class: str) -> _History:
        history = self._histories.get(request_class, _NONE)
        return self._all if history.weight < _ENOUGH and request_class in self._new else history

    def _compared(self, request_class: str, recent: deque[Answer]) -> Drift | None:
        history = self._suspected.get(request_class) or self._reference(request_class)
        if history.weight < _ENOUGH:
            return None
        now = _history_of(recent)
        loss, error = history.mean - now.mean, math.sqrt(history.error + now.error)
        if loss < math.log(_LEAST_LOSS) or loss < _SURE * error or now.acceptance >= history.acceptance:
            return None
        return Drift(request_class, recent[0].time, recent[-1].time, math.exp(history.mean), math.exp(now.mean))


def _history_of(answers: Iterable[Answer]) -> _History:
    history = _History()
    for answer in answers:
        history.add(answer)
    return history


_NONE = _History()
