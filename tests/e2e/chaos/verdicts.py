"""Judges answers against those of an undisturbed run: text for text, with their finish reasons and token counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from tests.e2e.chaos.answers import Answer

_OK = 200
_TOO_MANY = 429
_UNAVAILABLE = 503
_EXAMPLES = 3
_SHOWN_CHARACTERS = 24


class Verdict(StrEnum):
    """What became of a request. `RIGHT` alone is a success; `EXPLAINED` is one for requests that cannot be resumed."""

    RIGHT = "right"
    WRONG = "wrong"  # a token too much, too little or another: whatever else happens, this must not
    CUT = "cut"  # an end without `[DONE]` or a finish reason, and without a word
    EXPLAINED = "explained"  # an error event in the stream
    REFUSED = "refused"  # 429 or 503 before the first byte
    FAILED = "failed"  # any other status
    BROKEN = "broken"  # the connection ended
    HUNG = "hung"  # no end within the client's limit


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The one right answer to a request."""

    texts: tuple[str, ...]
    finish_reasons: tuple[str | None, ...]
    output_tokens: int | None


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """An answer's verdict, and why in a few words."""

    answer: Answer
    verdict: Verdict
    why: str = ""

    @property
    def acceptable(self) -> bool:
        """Right, or an explicit error of a stream that need not survive its server."""
        return self.verdict is Verdict.RIGHT or (self.verdict is Verdict.EXPLAINED and not self.answer.ask.resumable)


def judge(answer: Answer, expected: Expected) -> Judged:
    """The verdict. Text that is no beginning of the right one is wrong, however the answer ended."""
    verdict, why = _verdict(answer, expected)
    return Judged(answer=answer, verdict=verdict, why=why)


def _verdict(answer: Answer, expected: Expected) -> tuple[Verdict, str]:
    if answer.status not in (None, _OK):
        refused = answer.status in (_TOO_MANY, _UNAVAILABLE)
        return Verdict.REFUSED if refused else Verdict.FAILED, f"{answer.status} {answer.error}"
    if difference := _difference(answer, expected):
        return Verdict.WRONG, difference
    if answer.error:
        return Verdict.EXPLAINED, answer.error
    if answer.broken:
        return Verdict.HUNG if answer.broken.startswith("no end") else Verdict.BROKEN, answer.broken
    if not answer.done or None in answer.finish_reasons:
        return Verdict.CUT, f"after {len(''.join(answer.texts))} characters"
    return _whole(answer, expected)


def _difference(answer: Answer, expected: Expected) -> str:
    """Where the text leaves the right one; empty while it is a beginning of it."""
    for index, text in enumerate(answer.texts):
        right = expected.texts[index] if index < len(expected.texts) else ""
        if not right.startswith(text):
            at = next((at for at, (a, b) in enumerate(zip(text, right, strict=False)) if a != b), len(right))
            shown = text[at : at + _SHOWN_CHARACTERS], right[at : at + _SHOWN_CHARACTERS]
            return f"choice {index} at character {at}: {shown[0]!r} for {shown[1]!r}"
    return ""


def _whole(answer: Answer, expected: Expected) -> tuple[Verdict, str]:
    """An answer that ended by itself must have all of the text, its finish reasons and its count of tokens."""
    for field in ("texts", "finish_reasons", "output_tokens"):
        found, right = getattr(answer, field), getattr(expected, field)
        if found != right:
            return Verdict.WRONG, f"{field}: {str(found)[-60:]} for {str(right)[-60:]}"
    return Verdict.RIGHT, ""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of a load, judged."""

    judged: tuple[Judged, ...]

    @classmethod
    def of(cls, answers: Iterable[Answer], expected: Mapping[str, Expected]) -> Tally:
        return cls(judged=tuple(judge(answer, expected[answer.ask.name]) for answer in answers))

    @property
    def requests(self) -> int:
        return len(self.judged)

    @property
    def counts(self) -> Counter[str]:
        return Counter(str(each.verdict) for each in self.judged)

    @property
    def wrong(self) -> int:
        return self.counts[Verdict.WRONG]

    @property
    def unacceptable(self) -> int:
        """Failures that a client sees where it should see none."""
        return sum(not each.acceptable for each in self.judged)

    @property
    def answers(self) -> list[Answer]:
        return [each.answer for each in self.judged]

    def summary(self) -> str:
        """`120 right, 2 broken`."""
        return ", ".join(f"{count} {verdict}" for verdict, count in self.counts.most_common()) or "no requests"

    def examples(self) -> list[str]:
        """A few of what should not be, for the reader of a miss."""
        bad = [each for each in self.judged if not each.acceptable]
        return [f"{each.answer.ask.name}: {each.verdict}, {each.why}" for each in bad[:_EXAMPLES]]
