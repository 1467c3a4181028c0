"""The answers that are drawn for a comparison, and what they are compared with. Pure."""

from __future__ import annotations

from slipstream_core.types import Decision, GenerationRequest

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.journal import same_target
from slipstream_gateway.request.observations import PendingObservation
from slipstream_gateway.request.parity.comparison import Collector
from slipstream_gateway.request.parity.replay import Candidate, by_scores, comparable, comparable_revisions
from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.pool import Replica

NEW_REVISION_SHARE = 0.1


def drawn(
    served: ServedRoute,
    serving: ServedRoute,
    *,
    decision: Decision,
    job: Job,
    draw: float,
    observation: PendingObservation | None = None,
) -> Candidate | None:
    """The candidate for the answer of `served` to `job`; None if it is not compared. `serving` is the route of the
    serving revision, which is `served` unless the answer is of a new one. `draw` in [0, 1) is compared with the
    policy's share, or that of a new revision. `observation` records the result of the comparison."""
    if served is not serving and same_target(served.route, serving.route):
        if draw >= NEW_REVISION_SHARE or not comparable_revisions(served, serving, job.request):
            return None
        return _candidate(serving, decision, job, observation, of_new_revision=True)
    policy, request = served.route.policy, job.request
    if policy is None or draw >= policy.spec.parity_share or not comparable(served, decision, request):
        return None
    scored = by_scores(served, request)
    return None if scored and not job.token_ids else _candidate(served, decision, job, observation, by_scores=scored)


def wants_token_ids(
    replica: Replica, *, served: ServedRoute, decision: Decision, request: GenerationRequest, draw: float
) -> bool:
    """Whether the comparison of the answer from `replica` needs its token ids: it is by scores, the answer is drawn for
    a comparison, and a check found that the server returns ids."""
    policy = served.route.policy
    return (
        policy is not None
        and draw < policy.spec.parity_share
        and replica.gives_token_ids
        and by_scores(served, request)
        and comparable(served, decision, request)
    )


def _candidate(
    served: ServedRoute,
    decision: Decision,
    job: Job,
    observation: PendingObservation | None,
    *,
    by_scores: bool = False,
    of_new_revision: bool = False,
) -> Candidate:
    return Candidate(
        served=served,
        decision=decision,
        job=job,
        answer=Collector(stream=False),
        by_scores=by_scores,
        of_new_revision=of_new_revision,
        observation=observation,
    )
