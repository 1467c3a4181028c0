"""One answer that waits for its plain replay: the condition for a replay, the replay, and the report of a mismatch."""

from __future__ import annotations

import logging

import msgspec
from slipstream_core.manifest.capabilities import UNREAD
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Reason

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.observations import PendingObservation
from slipstream_gateway.request.parity.comparison import Answer, Collector, Difference, parting
from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.pool import Replica

_CHECKED_REASONS = frozenset({Reason.SPECULATION_PAYS, Reason.CLASS_ENABLED, Reason.CLIENT_ASKED, Reason.EXPLORATION})
_EXCERPT_CHARS = 2000
_FINISH_REASONS = frozenset({None, "stop", "length", "tool_calls", "function_call", "content_filter"})
_MEDIA = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file", "prompt_embeds"})

_log = logging.getLogger(__name__)


class Candidate(msgspec.Struct, kw_only=True, eq=False):
    """An answer to replay on the plain arm of `served`. `of_new_revision`: the answer is not of
    `served`, but of a new revision beside it. `by_scores`: both answers are scored, otherwise they must be
    equal. `since_s` is the time at which it was queued, by the loop's clock. `observation` records the result of the
    comparison, None: it is not recorded."""

    served: ServedRoute
    decision: Decision
    job: Job
    answer: Collector
    by_scores: bool = False
    observation: PendingObservation | None = None
    of_new_revision: bool = False
    since_s: float = 0.0
    attempts: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.served.route.pair.metadata.key, self.decision.request_class

    @property
    def size_bytes(self) -> int:
        return self.answer.size_bytes + len(self.job.request.raw)


def tell(candidate: Candidate, *, matched: bool) -> None:
    """Records the result of the comparison for the guards of the speculative arm."""
    route = candidate.served.route
    if candidate.observation is not None:
        backend = route.plain if route.speculative is None else route.speculative
        candidate.observation.record_parity(decision=candidate.decision, backend=backend, matched=matched)


def comparable(served: ServedRoute, decision: Decision, request: GenerationRequest) -> bool:
    """Whether a plain answer to `request` must be equal or, if its comparison is `by_scores`, have the same
    distribution."""
    return (
        decision.arm is Arm.SPECULATIVE
        and decision.reason in _CHECKED_REASONS
        and request.n == 1
        and (not by_scores(served, request) or _can_be_scored(served, request))
        and UNREAD.isdisjoint(request.features)
        and not served.route.plain.capabilities.missing(request.features)
    )


def comparable_revisions(new: ServedRoute, serving: ServedRoute, request: GenerationRequest) -> bool:
    """Whether an answer of `new` must be equal to a plain one of `serving`, which has the same target: it is greedy, or
    both promise equal answers for equal seeds."""
    fingerprint = serving.plain.fingerprint
    return (
        request.n == 1
        and (request.temperature == 0 or (bool(fingerprint) and new.plain.fingerprint == fingerprint))
        and UNREAD.isdisjoint(request.features)
        and not serving.route.plain.capabilities.missing(request.features)
    )


def by_scores(served: ServedRoute, request: GenerationRequest) -> bool:
    """Whether answers to `request` are compared by their scores: they are sampled, and the servers of both arms do not
    promise equal answers for equal seeds."""
    return request.temperature > 0 and not _is_promised(served)


def _is_promised(served: ServedRoute) -> bool:
    fingerprint = served.plain.fingerprint
    return bool(fingerprint) and served.speculative is not None and served.speculative.fingerprint == fingerprint


def _can_be_scored(served: ServedRoute, request: GenerationRequest) -> bool:
    """Whether servers can score answers to `request` by token ids alone: its prompt is nothing but text."""
    plain = served.route.plain
    has_scores = plain.scores_prompts and not plain.own_engine  # the contract of Slipstream's engine has no scores
    return has_scores and request.endpoint is not Endpoint.RESPONSES and request.features.isdisjoint(_MEDIA)


async def replay(candidate: Candidate, replica: Replica) -> Answer:
    """The plain answer. Raises the errors of upstreams, and `Incomparable`."""
    job = _plain_job(candidate, replica)
    request = job.request
    collector = Collector(stream=request.stream)
    if not request.stream:
        for piece in (await replica.upstream.complete(job)).pieces:
            collector.add(piece)
        return await collector.read()
    stream = await replica.upstream.open(job)
    try:
        while (part := await stream.next()) is not None:
            collector.add(part)
    finally:
        await stream.aclose()
    return await collector.read()


def _plain_job(candidate: Candidate, replica: Replica) -> Job:
    """The same request for the plain arm. It is not part of the client's trace, but it may need the client's key."""
    plain, job = candidate.served.route.plain, candidate.job
    request = job.request
    if replica.upstream.sends_tokens:  # in one piece the answer is the same, and costs less
        request = msgspec.structs.replace(request, stream=False)
    return Job(
        request=request,
        model=plain.model,
        draft_length=0,
        request_id=f"{job.request_id}-parity",
        headers=tuple((name, value) for name, value in job.headers if name == "authorization"),
        margins=True,
        token_ids=candidate.by_scores,
    )


def report(candidate: Candidate, difference: Difference, speculative: Answer, plain: Answer) -> None:
    """Logs a mismatch in one line, without the customer's text unless the policy permits it."""
    pair, request_class = candidate.key
    policy = candidate.served.route.policy
    margin = "unknown" if difference.margin is None else f"{difference.margin:.6g}"
    what = "mismatch of a new revision" if candidate.of_new_revision else "parity mismatch"
    line = (
        f"{what}: pair={pair} class={request_class} request={candidate.job.request_id!r} "
        f"draft_length={candidate.decision.draft_length} first_difference={difference.unit} {difference.index} "
        f"margin={margin} speculative=({_described(speculative)}) plain=({_described(plain)})"
    )
    if policy is not None and policy.spec.parity_texts:
        at = parting(speculative.text, plain.text) or 0
        line += f" speculative_text={_around(speculative.text, at)!r} plain_text={_around(plain.text, at)!r}"
    _log.warning("%s", line)


def _around(text: str, at: int) -> str:
    """At most `_EXCERPT_CHARS` characters of `text`, starting half as many before the index `at`."""
    start = max(0, at - _EXCERPT_CHARS // 2)
    return text[start : start + _EXCERPT_CHARS]


def _described(answer: Answer) -> str:
    known = answer.finish_reason if answer.finish_reason in _FINISH_REASONS else "other"
    return f"sha256={answer.sha256} length={len(answer)} finish_reason={known}"
