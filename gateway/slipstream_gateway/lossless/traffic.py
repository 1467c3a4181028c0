"""The answers in traffic that are compared with plain ones: which ones they are, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from slipstream_core.manifest.capabilities import UNREAD
from slipstream_core.observation import ParityResult
from slipstream_core.types import BY_SAVING, Arm, Decision, Endpoint, GenerationRequest, Reason

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.answer_copy import MAX_ANSWER_BYTES
from slipstream_gateway.request.call import Call
from slipstream_gateway.request.candidates import Attempt
from slipstream_gateway.request.journal import same_target
from slipstream_gateway.request.observations import PendingObservation
from slipstream_gateway.upstreams.base import Piece

Key = tuple[str, str]
"""A pair and a class."""
Recording = Callable[[ParityResult], None]
"""Records the result of one comparison."""
NEW_REVISION_SHARE = 0.1
MAX_RUNNING = 64
MAX_REQUEST_BYTES = 1024 * 1024
TOO_LARGE, _QUEUE_FULL = "too_large", "queue_full"
_CHECKED_REASONS = BY_SAVING | {Reason.CLASS_ENABLED, Reason.CLIENT_ASKED, Reason.EXPLORATION}
_MEDIA = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file", "prompt_embeds"})


class Candidate(msgspec.Struct, kw_only=True, eq=False):
    """A whole answer to replay on the plain arm of `served`: its `pieces`, and the `request` that it answers.
    `of_new_revision`: the answer is not of `served`, but of a new revision beside it. `by_scores`: both answers are
    scored, otherwise they must be equal. `since_s` is the time at which it was queued, by the loop's clock. `caller` is
    the public id of the client's API key, empty without one. `observation` records the result of the comparison, None:
    it is not recorded."""

    served: ServedRoute
    decision: Decision
    request: GenerationRequest
    request_id: str
    authorization: str | None
    pieces: Sequence[Piece]
    size_bytes: int
    by_scores: bool = False
    caller: str = ""
    observation: PendingObservation | None = None
    of_new_revision: bool = False
    since_s: float = 0.0

    @property
    def key(self) -> Key:
        return self.served.route.key, self.decision.request_class

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The client's headers for a request that parity sends itself."""
        return () if self.authorization is None else (("authorization", self.authorization),)

    def recording(self) -> Recording:
        """A function that records the result of the comparison for the guards of the speculative arm. It holds neither
        the answer nor its request."""
        observation, route = self.observation, self.served.route
        if observation is None:
            return lambda result: None
        backend = route.plain if route.speculative is None else route.speculative
        return partial(observation.record_parity, decision=self.decision, backend=backend)


class TrafficSamples:
    """The answers in traffic as a source of samples: `take` gets each that is to be compared, `drop` the key of each
    that cannot be, and the cause."""

    def __init__(self, take: Callable[[Candidate], None], drop: Callable[[Key, str], None]) -> None:
        self._take = take
        self._drop = drop
        self._running = 0

    def draw(self, call: Call, served: ServedRoute) -> DrawnAnswer | None:
        """A `Before` step: draws the answer by the share of the policy, or by that of a new revision."""
        share, decision = parity_share(served), call.decision
        is_canary = call.observation is not None and call.observation.canary
        if is_canary:
            share = max(share, NEW_REVISION_SHARE)
        if call.draws.parity >= share or decision is None:
            return None
        if not is_canary and not comparable(served, decision, call.request):
            return None
        cause = TOO_LARGE if len(call.request.raw) > MAX_REQUEST_BYTES else _QUEUE_FULL
        if cause == TOO_LARGE or self._running >= MAX_RUNNING:
            self._drop((served.route.key, decision.request_class), cause)
            return None
        self._running += 1
        return DrawnAnswer(served, self._ended)

    def _ended(self, call: Call, serving: ServedRoute) -> None:
        self._running -= 1
        candidate = candidate_of(call, serving)
        if candidate is None or call.copy is None:
            return
        if call.copy.size_bytes() > MAX_ANSWER_BYTES:
            self._drop(candidate.key, TOO_LARGE)
        elif not candidate.by_scores or any(piece.prompt_token_ids for piece in candidate.pieces):
            self._take(candidate)


class DrawnAnswer:
    """The answer to one call that was drawn for a comparison, of a server of `serving` or of its new revision."""

    def __init__(self, serving: ServedRoute, ended: Callable[[Call, ServedRoute], None]) -> None:
        self._serving = serving
        self._ended = ended

    def wants_token_ids(self, call: Call, attempt: Attempt) -> bool:
        """Whether the comparison needs the token ids of the answer: it is by scores, and a check found that the server
        returns ids."""
        served, request = attempt.served, call.request
        return (
            attempt.replica.gives_token_ids
            and by_scores(served, request)
            and call.draws.parity < parity_share(served)
            and comparable(served, attempt.decision, request)
        )

    def ended(self, call: Call) -> None:
        self._ended(call, self._serving)


def candidate_of(call: Call, serving: ServedRoute) -> Candidate | None:
    """The candidate for the answer of `call`; None if it is not compared. A request that broke a server is sent to no
    further one."""
    attempt, draw, request = call.attempt, call.draws.parity, call.request
    if attempt is None or call.copy is None or call.status != "ok" or call.resumed or call.runs:
        return None
    served = attempt.served
    of_new_revision = served is not serving and same_target(served.route, serving.route)
    scored = not of_new_revision and by_scores(served, request)
    if of_new_revision:
        if draw >= NEW_REVISION_SHARE or not comparable_revisions(served, serving, request):
            return None
    elif draw >= parity_share(served) or not comparable(served, attempt.decision, request):
        return None
    return Candidate(
        served=serving if of_new_revision else served,
        decision=attempt.decision,
        request=request,
        request_id=call.context.request_id,
        authorization=call.context.authorization,
        pieces=call.copy.pieces,
        size_bytes=call.copy.size_bytes() + len(request.raw),
        by_scores=scored,
        caller=call.context.caller.key_id,
        of_new_revision=of_new_revision,
        observation=call.observation,
    )


def parity_share(served: ServedRoute) -> float:
    """The share of the answers that the policy draws for comparisons; 0 without a policy."""
    policy = served.route.policy
    return 0.0 if policy is None else policy.spec.parity_share


def comparable(served: ServedRoute, decision: Decision, request: GenerationRequest) -> bool:
    """Whether a plain answer to `request` must be equal or, if its comparison is `by_scores`, have the same
    distribution."""
    return (
        decision.arm is Arm.SPECULATIVE
        and decision.reason in _CHECKED_REASONS
        and (not by_scores(served, request) or _can_be_scored(served, request))
        and _can_be_replayed(served, request)
    )


def comparable_revisions(new: ServedRoute, serving: ServedRoute, request: GenerationRequest) -> bool:
    """Whether an answer of `new` must be equal to a plain one of `serving`, which has the same target: it is greedy, or
    both promise equal answers for equal seeds."""
    fingerprint = serving.plain.fingerprint
    is_equal = request.temperature == 0 or (bool(fingerprint) and new.plain.fingerprint == fingerprint)
    return is_equal and _can_be_replayed(serving, request)


def by_scores(served: ServedRoute, request: GenerationRequest) -> bool:
    """Whether answers to `request` are compared by their scores: they are sampled, and the servers of both arms do not
    promise equal answers for equal seeds."""
    return request.temperature > 0 and not _is_promised(served)


def _can_be_replayed(served: ServedRoute, request: GenerationRequest) -> bool:
    """Whether the plain arm of `served` honours `request`, and its answer has one choice, or is one body of several
    prompts. The chunks of several choices arrive in an order that varies from run to run."""
    is_single = request.n == 1 and (request.prompts == 1 or not request.stream)
    is_read = UNREAD.isdisjoint(request.features)
    return is_single and is_read and not served.route.plain.capabilities.missing(request.features)


def _is_promised(served: ServedRoute) -> bool:
    fingerprint = served.plain.fingerprint
    return bool(fingerprint) and served.speculative is not None and served.speculative.fingerprint == fingerprint


def _can_be_scored(served: ServedRoute, request: GenerationRequest) -> bool:
    """Whether servers can score answers to `request` by token ids alone: its prompt is nothing but text."""
    has_text = request.endpoint is not Endpoint.RESPONSES and request.features.isdisjoint(_MEDIA)
    return has_text and served.route.plain.scores_prompts
