"""Detects that the draft of a class has become worse, by comparing the class with its own history.

The measure is the number of tokens per step of the target. It also falls under load, because a busy engine verifies
fewer draft tokens. Then the acceptance rises, since the engine verifies the likeliest ones. Drift is therefore a fall
of the tokens per step without a rise of the acceptance.
"""

from __future__ import annotations

import datetime
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

WINDOW = 200
"""Number of answers of a class that are compared with its history."""
ESTABLISHED = 5 * WINDOW
"""Number of answers of a pair, after which a class that was not among them may be new traffic."""
_NEW_SHARE = 0.1  # smallest share of the pair's answers of a class that is new traffic
_ENOUGH = 0.9 * WINDOW  # smallest weight of a history to compare with; a window's own weight is 196, as answers fade
_LEAST_LOSS = 1.1  # ratio of tokens per step
_SURE = 5.0  # standard errors; high, because the test is repeated with each answer
_KEPT = 1.0 - 1.0 / 5000.0  # share of a history's weight that is left after each answer


class Answer(NamedTuple):
    """A speculative answer: the numbers of its output tokens, of the target's steps, and of drafted and accepted
    tokens."""

    time: datetime.datetime
    tokens: int
    steps: int
    drafted: int
    accepted: int


class Drift(NamedTuple):
    """A fall of the tokens per step of a class. `before` and `after` are geometric means over answers. `since` and
    `time` are the times of the first and the last answer of the window that confirms it."""

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
    """Finds drift in answers, which are added in the order of their times.

    `known` has the time of the last drift of a class. Answers up to then are history. They do not raise a drift again.
    """

    def __init__(self, known: Mapping[str, datetime.datetime]) -> None:
        self._known = dict(known)
        self._all = _History()
        self._histories: dict[str, _History] = {}
        self._recent: dict[str, deque[Answer]] = {}
        self._new: dict[str, int] = {}  # new classes, with the number of the pair's answers before
        self._suspected: dict[str, _History] = {}
        self._count = 0

    def add(self, request_class: str, answer: Answer) -> Drift | None:
        """Add an answer. Returns the drift of its class, if this answer completes the second of two windows in a row
        that are worse than the class's history.

        A class without a history is compared with all classes together if it is new traffic: it was not among the first
        `ESTABLISHED` answers, and has at least a tenth of the answers since then.
        """
        recent = self._noted(request_class, answer)
        if len(recent) < WINDOW or request_class in self._known:
            return None
        is_suspected = request_class in self._suspected
        if not is_suspected and self._count - self._new.get(request_class, 0) > WINDOW / _NEW_SHARE:
            self._new.pop(request_class, None)  # it is rare
        drift = self._compared(request_class, recent)
        if drift is None:
            self._suspected.pop(request_class, None)
        elif is_suspected:
            del self._suspected[request_class]
            self._begin(request_class)
        else:  # this window may have answers from before the change; the next window has none
            self._suspected[request_class] = self._reference(request_class)
            recent.clear()
        return drift if is_suspected else None

    def _noted(self, request_class: str, answer: Answer) -> deque[Answer]:
        """The last answers of the class with `answer`. Older answers are moved to the history."""
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
        return recent

    def _begin(self, request_class: str) -> None:
        """Make the last answers the history of the answers that follow."""
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
