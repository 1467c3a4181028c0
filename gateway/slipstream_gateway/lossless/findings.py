"""Findings about an engine from the answers and scores of a check. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from slipstream_gateway.lossless.answers import WholeAnswer, first_difference
from slipstream_gateway.lossless.probes import COPYING, SAMPLING
from slipstream_gateway.lossless.score import evidence_of, factors_of
from slipstream_gateway.lossless.token_scores import TokenScore
from slipstream_gateway.upstreams.base import Usage

TIE_NATS = 0.25
"""Two tokens with closer log-probabilities may change places between batches of different shapes, at 16 bits."""
PROOF = math.log(1e6)
"""The evidence that a lossless engine exceeds in one check of a million."""
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


class Finding(msgspec.Struct, frozen=True):
    """`detail` is one sentence without text of answers. `evidence` in nats, if there was a test."""

    subject: Subject
    result: Result
    detail: str
    evidence: float | None = None


class ProbeAnswer(NamedTuple):
    """A server's answer to one probe, and its cost as the server reports it."""

    answer: WholeAnswer
    usage: Usage


class GreedyPair(NamedTuple):
    """The speculative and the plain answer to one prompt. `tie` is the difference in log-probability, in nats, between
    the plain and the speculative token at the first difference; None if unknown."""

    speculative: ProbeAnswer
    plain: ProbeAnswer
    tie: float | None = None


def judge_greedy(pairs: Sequence[GreedyPair], *, counted: bool) -> Finding:
    """Whether the answers are equal up to ties: one difference other than a tie is proof. `counted`: the server counts
    its drafts, and answers without any give no evidence on speculation."""
    subject = Subject.GREEDY_SPECULATION
    if not pairs or not any(pair.plain.answer.text for pair in pairs):
        return Finding(subject, Result.NO_DATA, "no probe was answered")
    differing = [pair for pair in pairs if first_difference(pair.speculative.answer, pair.plain.answer) is not None]
    broken = [pair for pair in differing if pair.tie is None or pair.tie > TIE_NATS]
    if not broken and counted and not any(pair.speculative.usage.drafted for pair in pairs):
        return Finding(subject, Result.NO_DATA, _UNDRAFTED)
    if not broken:
        ties = f", {len(differing)} of them up to ties" if differing else ""
        return Finding(subject, Result.PASS, f"{len(pairs)} greedy answers are equal{ties}")
    return Finding(subject, Result.FAIL, f"{len(broken)} of {len(pairs)} greedy answers differ from the plain ones")


def judge_sampled(
    speculative: Sequence[Sequence[TokenScore]], plain: Sequence[Sequence[TokenScore]], *, drafted: int | None
) -> Finding:
    """Whether the speculative answers could have been drawn from the target, if the scores confirm that for the plain
    answers. `drafted` are the draft tokens of the speculative ones; None: the server does not count them."""
    subject = Subject.SAMPLED_SPECULATION
    if not any(speculative) or not any(plain):
        return Finding(subject, Result.NO_DATA, "no sampled answer could be scored")
    evidence, reference = (
        evidence_of([factors_of(scores, SAMPLING) for scores in answers]) for answers in (speculative, plain)
    )
    if reference >= UNCALIBRATED:
        return Finding(
            subject,
            Result.NO_DATA,
            f"plain answers are unlikely under their own server's scores (evidence {reference:.1f})",
            evidence,
        )
    means = f"mean log-probability {_mean(speculative):.2f} per token, plain {_mean(plain):.2f}"
    if evidence >= PROOF:
        return Finding(
            subject, Result.FAIL, f"sampled answers are not the target's: {means}, evidence {evidence:.1f}", evidence
        )
    if drafted == 0:
        return Finding(subject, Result.NO_DATA, _UNDRAFTED, evidence)
    return Finding(
        subject, Result.PASS, f"{len(speculative)} sampled answers are likely under the target: {means}", evidence
    )


def judge_draft_length(pairs: Sequence[GreedyPair]) -> Finding:
    """Whether the first prompt, which asks for a copy, was drafted and no plain answer was, by the server's own
    counts."""
    subject = Subject.DRAFT_LENGTH
    plain = sum(pair.plain.usage.drafted for pair in pairs)
    speculative = sum(pair.speculative.usage.drafted for pair in pairs)
    if plain:
        return Finding(subject, Result.FAIL, f"{plain} tokens were drafted for answers with draft length 0")
    if not speculative:
        return Finding(subject, Result.NO_DATA, "the server counted no draft token")
    if not pairs[0].speculative.usage.drafted:
        return Finding(
            subject, Result.FAIL, f"no token was drafted for a repetitive prompt of {len(COPYING)} characters"
        )
    return Finding(subject, Result.PASS, f"{speculative} tokens drafted, 0 at draft length 0")


def judge_dialect(pairs: Sequence[GreedyPair], *, dialect: str, field: str) -> Finding:
    """Whether the speculative answers reported their usage and, in the form that `dialect` has in `field`, their
    drafts."""
    subject, answers = Subject.DIALECT, [pair.speculative for pair in pairs]
    without = sum(not (answer.usage.exact and answer.usage.counted) for answer in answers)
    if not answers:
        return Finding(subject, Result.NO_DATA, "no probe was answered")
    if without:
        return Finding(
            subject,
            Result.FAIL,
            f"{without} of {len(answers)} answers have no usage with {field}, which dialect {dialect} reports",
        )
    return Finding(
        subject, Result.PASS, f"{len(answers)} answers have a usage with {field}, as dialect {dialect} reports it"
    )


def _mean(answers: Sequence[Sequence[TokenScore]]) -> float:
    logprobs = [score.logprob for scores in answers for score in scores]
    return sum(logprobs) / len(logprobs)
