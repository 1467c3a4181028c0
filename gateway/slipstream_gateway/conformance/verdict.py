"""Findings about an engine from the answers and scores of a check. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from slipstream_gateway.conformance.probes import COPYING, SAMPLING, ProbeAnswer
from slipstream_gateway.request.likelihood import NOTHING, factors_of
from slipstream_gateway.upstreams.base import TokenScore

TIE_NATS = 0.25
"""Two tokens with closer log-probabilities may change places between batches of different shapes, at 16 bits."""
PROOF = math.log(1e6)
"""The evidence that a lossless engine exceeds in one check of a million (see `request.likelihood`)."""
UNCALIBRATED = PROOF / 2.0
"""With this much evidence against the plain answers, the server does not sample by the probabilities that it
reports."""

_UNDRAFTED = "the server drafted no token for the probes"


class Subject(StrEnum):
    """The subject of a check: two capabilities of a server, whether it follows draft lengths, and whether it speaks the
    dialect that the manifest names."""

    GREEDY_SPECULATION = "greedy_speculation"
    SAMPLED_SPECULATION = "sampled_speculation"
    DRAFT_LENGTH = "draft_length"
    DIALECT = "dialect"


class Result(StrEnum):
    """The result of a check for one subject. `NO_DATA`: it was impossible or inconclusive."""

    PASS = "pass"
    FAIL = "fail"
    NO_DATA = "no_data"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` is one sentence without text of answers. `evidence` in nats, if there was a test."""

    subject: Subject
    result: Result
    detail: str
    evidence: float | None = None


class GreedyPair(NamedTuple):
    """The speculative and the plain answer to one prompt. `tie` is the difference in log-probability, in nats, between
    the plain and the speculative token at the first difference; None if unknown."""

    speculative: ProbeAnswer
    plain: ProbeAnswer
    tie: float | None = None


def first_difference(one: ProbeAnswer, other: ProbeAnswer) -> int | None:
    """The index of the first token that differs (of the first character, if ids are missing); None: equal."""
    first: Sequence[object] = one.token_ids or one.text
    second: Sequence[object] = other.token_ids or other.text
    if not (one.token_ids and other.token_ids):
        first, second = one.text, other.text
    if first == second:
        return None
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def judge_greedy(pairs: Sequence[GreedyPair], *, counted: bool) -> Finding:
    """Whether the answers are equal up to ties: one difference other than a tie is proof. `counted`: the server counts
    its drafts, and answers without any give no evidence on speculation."""
    subject = Subject.GREEDY_SPECULATION
    if not pairs or not any(pair.plain.text for pair in pairs):
        return Finding(subject=subject, result=Result.NO_DATA, detail="no probe was answered")
    differing = [pair for pair in pairs if first_difference(pair.speculative, pair.plain) is not None]
    broken = [pair for pair in differing if pair.tie is None or pair.tie > TIE_NATS]
    if not broken and counted and not any(pair.speculative.drafted for pair in pairs):
        return Finding(subject=subject, result=Result.NO_DATA, detail=_UNDRAFTED)
    if not broken:
        ties = f", {len(differing)} of them up to ties" if differing else ""
        return Finding(subject=subject, result=Result.PASS, detail=f"{len(pairs)} greedy answers are equal{ties}")
    detail = f"{len(broken)} of {len(pairs)} greedy answers differ from the plain ones"
    return Finding(subject=subject, result=Result.FAIL, detail=detail)


def judge_sampled(
    speculative: Sequence[Sequence[TokenScore]], plain: Sequence[Sequence[TokenScore]], *, drafted: int | None
) -> Finding:
    """Whether the speculative answers could have been drawn from the target, if the scores confirm that for the plain
    answers. `drafted` are the draft tokens of the speculative ones; None: the server does not count them."""
    subject = Subject.SAMPLED_SPECULATION
    if not any(speculative) or not any(plain):
        return Finding(subject=subject, result=Result.NO_DATA, detail="no sampled answer could be scored")
    evidence, reference = _evidence(speculative), _evidence(plain)
    if reference >= UNCALIBRATED:
        detail = f"plain answers are unlikely under their own server's scores (evidence {reference:.1f})"
        return Finding(subject=subject, result=Result.NO_DATA, detail=detail, evidence=evidence)
    means = f"mean log-probability {_mean(speculative):.2f} per token, plain {_mean(plain):.2f}"
    if evidence >= PROOF:
        detail = f"sampled answers are not the target's: {means}, evidence {evidence:.1f}"
        return Finding(subject=subject, result=Result.FAIL, detail=detail, evidence=evidence)
    if drafted == 0:
        return Finding(subject=subject, result=Result.NO_DATA, detail=_UNDRAFTED, evidence=evidence)
    detail = f"{len(speculative)} sampled answers are likely under the target: {means}"
    return Finding(subject=subject, result=Result.PASS, detail=detail, evidence=evidence)


def judge_draft_length(pairs: Sequence[GreedyPair]) -> Finding:
    """Whether the first prompt, which asks for a copy, was drafted and no plain answer was, by the server's own
    counts."""
    subject = Subject.DRAFT_LENGTH
    plain = sum(pair.plain.drafted for pair in pairs)
    speculative = sum(pair.speculative.drafted for pair in pairs)
    if plain:
        detail = f"{plain} tokens were drafted for answers with draft length 0"
        return Finding(subject=subject, result=Result.FAIL, detail=detail)
    if not speculative:
        return Finding(subject=subject, result=Result.NO_DATA, detail="the server counted no draft token")
    if not pairs[0].speculative.drafted:
        detail = f"no token was drafted for a repetitive prompt of {len(COPYING)} characters"
        return Finding(subject=subject, result=Result.FAIL, detail=detail)
    detail = f"{speculative} tokens drafted, 0 at draft length 0"
    return Finding(subject=subject, result=Result.PASS, detail=detail)


def judge_dialect(pairs: Sequence[GreedyPair], *, dialect: str, field: str) -> Finding:
    """Whether the speculative answers reported their usage and, in the form that `dialect` has in `field`, their
    drafts."""
    subject, answers = Subject.DIALECT, [pair.speculative for pair in pairs]
    without = sum(not answer.counted for answer in answers)
    if not answers:
        return Finding(subject=subject, result=Result.NO_DATA, detail="no probe was answered")
    if without:
        detail = f"{without} of {len(answers)} answers have no usage with {field}, which dialect {dialect} reports"
        return Finding(subject=subject, result=Result.FAIL, detail=detail)
    detail = f"{len(answers)} answers have a usage with {field}, as dialect {dialect} reports it"
    return Finding(subject=subject, result=Result.PASS, detail=detail)


def _evidence(answers: Sequence[Sequence[TokenScore]]) -> float:
    total = NOTHING
    for scores in answers:
        total = total.plus(factors_of(scores, SAMPLING))
    return max(total.far_evidence, total.shift_evidence) - math.log(2.0)


def _mean(answers: Sequence[Sequence[TokenScore]]) -> float:
    logprobs = [score.logprob for scores in answers for score in scores]
    return sum(logprobs) / len(logprobs)
