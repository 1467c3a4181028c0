"""The answers that are drawn for a comparison, and what they are compared with. Pure."""

from __future__ import annotations

from slipstream_core.types import Decision

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.journal import same_target
from slipstream_gateway.request.observations import PendingObservation
from slipstream_gateway.request.parity.comparison import Collector
from slipstream_gateway.request.parity.replay import Candidate, by_scores, comparable, comparable_revisions
from slipstream_gateway.upstreams.base import Job

NEW_REVISION_SHARE = 0.1


def drawn(
    served: ServedRoute,
    serving: ServedRoute | None,
    *,
    decision: Decision,
    job: Job,
    draw: float,
    observation: PendingObservation | None,
) -> Candidate | None:
    """The candidate for the answer of `served` to `job`; None if it is not compared. `serving` is the route of the
    serving revision if the answer is of a new one, else None. `draw` in [0, 1) is compared with the policy's share, or
    that of a new revision."""
    if serving is not None and same_target(served.route, serving.route):
        if draw >= NEW_REVISION_SHARE or not comparable_revisions(served, serving, job.request):
            return None
        return _candidate(serving, decision, job, observation, of_new_revision=True)
    policy, request = served.route.policy, job.request
    if policy is None or draw >= policy.spec.parity_share or not comparable(served, decision, request):
        return None
    scored = by_scores(served, request)
    return None if scored and not job.token_ids else _candidate(served, decision, job, observation, by_scores=scored)


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
