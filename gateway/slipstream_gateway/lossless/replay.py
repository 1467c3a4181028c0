"""The plain replay of one answer: the request, the comparison, and the report of a mismatch."""

from __future__ import annotations

import logging

from slipstream_core.errors import Incomparable

from slipstream_gateway.lossless.answers import Difference, WholeAnswer, parting, read_answer
from slipstream_gateway.lossless.score import Factors, Sampling, ScoredPair, factors_of
from slipstream_gateway.lossless.token_scores import UNSCORED, scores_of
from slipstream_gateway.lossless.traffic import TOO_LARGE, Candidate
from slipstream_gateway.request.answer_copy import MAX_ANSWER_BYTES, AnswerCopy
from slipstream_gateway.request.journal import NEUTRAL
from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.openai_reading import known_reason
from slipstream_gateway.upstreams.pool import Replica

_EXCERPT_CHARS = 2000
_log = logging.getLogger(__name__)


async def replay(candidate: Candidate, replica: Replica) -> WholeAnswer:
    """The plain answer. Raises the errors of upstreams, and `Incomparable`."""
    job = _plain_job(candidate, replica)
    if not job.request.stream:
        return await read_answer([(await replica.upstream.complete(job)).body], stream=False)
    copy = AnswerCopy()
    stream = await replica.upstream.open(job)
    try:
        while (piece := await stream.next()) is not None:
            copy.add(piece)
    finally:
        await stream.aclose()
    if copy.size_bytes() > MAX_ANSWER_BYTES:
        raise Incomparable(TOO_LARGE)
    return await read_answer(copy.pieces, stream=True)


def _plain_job(candidate: Candidate, replica: Replica) -> Job:
    """The same request for the plain arm. It is not part of the client's trace, but it may need the client's key."""
    return Job(
        request=candidate.request,
        model=candidate.served.route.plain.model,
        draft_length=0,
        seeded=replica.upstream.drafting.is_seeded,
        request_id=f"{candidate.request_id}-parity",
        headers=candidate.headers,
        token_ids=candidate.by_scores,
    )


async def scored_pair(candidate: Candidate, speculative: WholeAnswer, replica: Replica) -> ScoredPair | None:
    """The scores of both answers; `replica` decodes the plain answer and scores both, each in one request that decodes
    a single token. None: the answers are equal, and need no scores.

    Raises the errors of upstreams, and `Incomparable` if the server returns no ids or no scores.
    """
    plain = await replay(candidate, replica)
    if not speculative.token_ids or not plain.token_ids or not speculative.prompt_token_ids:
        raise Incomparable(UNSCORED)
    if speculative.token_ids == plain.token_ids:
        return None
    request = candidate.request
    sampling = Sampling(request.temperature, request.top_p, max(request.top_k, 0))
    prompt, model = speculative.prompt_token_ids, candidate.served.route.plain.model

    async def factors(token_ids: tuple[int, ...]) -> Factors:
        scores = await scores_of(replica.upstream, prompt, token_ids, model=model, headers=candidate.headers)
        return factors_of(scores, sampling)

    return ScoredPair(
        speculative=await factors(speculative.token_ids),
        plain=await factors(plain.token_ids),
        is_modelled=request.features <= NEUTRAL,  # answers to other requests are only compared with each other
    )


def report(candidate: Candidate, difference: Difference, speculative: WholeAnswer, plain: WholeAnswer) -> None:
    """Logs a mismatch in one line, without the customer's text unless the policy permits it."""
    pair, request_class = candidate.key
    policy = candidate.served.route.policy
    what = "mismatch of a new revision" if candidate.of_new_revision else "parity mismatch"
    line = (
        f"{what}: pair={pair} class={request_class} request={candidate.request_id!r} "
        f"draft_length={candidate.decision.draft_length} first_difference={difference.unit} {difference.index} "
        f"speculative=({_described(speculative)}) plain=({_described(plain)})"
    )
    if policy is not None and policy.spec.parity_texts:
        at = parting(speculative.text, plain.text) or 0
        line += f" speculative_text={_around(speculative.text, at)!r} plain_text={_around(plain.text, at)!r}"
    _log.warning("%s", line)


def _around(text: str, at: int) -> str:
    """At most `_EXCERPT_CHARS` characters of `text`, starting half as many before the index `at`."""
    start = max(0, at - _EXCERPT_CHARS // 2)
    return text[start : start + _EXCERPT_CHARS]


def _described(answer: WholeAnswer) -> str:
    reason = None if answer.finish_reason is None else known_reason(answer.finish_reason)
    return f"sha256={answer.sha256} length={len(answer)} finish_reason={reason}"
