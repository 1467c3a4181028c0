"""Gathers the inputs of a decision from the served routes, and decides."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec
from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.observation import Draws, Forecast, Subject
from slipstream_core.types import Caller, Decision, GenerationRequest, RequestProfile, speculation_of

from slipstream_gateway.decide.estimate import ForecastQuery, subject_of
from slipstream_gateway.decide.route import DecisionInputs, Health, decide
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.upstreams.engine_wire import client_xargs
from slipstream_gateway.upstreams.pool import Replica

_UP, _DOWN = Health(), Health(speculative_available=False)


class Classifier(Protocol):
    """Predicts task and length of a request. Pure and quick."""

    def classify(self, request: GenerationRequest) -> RequestProfile: ...

    def explain(self, request: GenerationRequest) -> RequestProfile:
        """The same profile with its evidence, which takes longer to gather."""
        ...


class Learner(Protocol):
    """The estimates of this deployment. The method is quick."""

    def forecast(self, query: ForecastQuery) -> Forecast: ...


class Judged(msgspec.Struct, frozen=True):
    """A decision with its inputs."""

    profile: RequestProfile
    subject: Subject
    decision: Decision


class Explanation(NamedTuple):
    """A decision with its inputs, for a request that is not run."""

    pair: str
    profile: RequestProfile
    decision: Decision


class Decider:
    """Classifies, forecasts and decides. `learner` and `classifier` hold the state."""

    def __init__(self, *, classifier: Classifier, learner: Learner) -> None:
        self._classifier = classifier
        self._learner = learner

    def decide(
        self,
        request: GenerationRequest,
        served: ServedRoute,
        *,
        caller: Caller,
        draws: Draws,
        pressure: float,
    ) -> Judged:
        """The decision for `request`. Raises `UnsupportedParameter` or `InvalidRequest`."""
        route = served.route
        if isinstance(route.pair.spec.engine, VllmEngine):
            client_xargs(request)  # raises for the same requests, whichever server would run them
        profile = self._classifier.classify(request)
        subject = subject_of(
            profile,
            request.temperature,
            pair=route.key,
            key_id=caller.key_id,
            adapter=route.adapter.name if route.adapter is not None else "",
        )
        target, health = _speculative_target(served, request)
        forecast = None
        if target is not None and route.policy is not None and route.policy.spec.decision != "rules":
            forecast = self._learner.forecast(_query(request, profile, subject, served, target))
        decision = decide(
            DecisionInputs(request, profile, route, forecast=forecast, draws=draws, health=health, pressure=pressure)
        )
        return Judged(profile, subject, decision)

    def explain(self, request: GenerationRequest) -> RequestProfile:
        """The request's profile with its evidence."""
        return self._classifier.explain(request)


def _query(
    request: GenerationRequest, profile: RequestProfile, subject: Subject, served: ServedRoute, target: Replica
) -> ForecastQuery:
    """The query to the estimates at the present load. `target` is the server on which the request would speculate."""
    route = served.route
    plain = served.plain.likely(None, served.plain.key_for(request), served.adapter)
    return ForecastQuery(
        subject=subject,
        profile=profile,
        plain_pool=route.plain.pool,
        speculative_pool=route.speculative.pool if route.speculative is not None else None,
        plain_load=plain.outstanding + 1.0 if plain is not None else 1.0,
        speculative_load=target.outstanding + 1.0,
        neighbours_draft_length=target.unconditional_draft_lengths / (target.outstanding + 1.0),
        max_tokens=request.max_tokens,
    )


def _speculative_target(served: ServedRoute, request: GenerationRequest) -> tuple[Replica | None, Health]:
    """The server on which `request` would speculate now, or None with the reason."""
    if served.speculative is None:
        return None, _UP
    needs = speculation_of(request)
    target = served.speculative.likely(needs, served.speculative.key_for(request), served.adapter)
    if target is not None:
        pool = served.speculative
        return target, Health(longest_draft=pool.longest_draft(needs), adaptive=pool.is_adaptive(needs))
    withheld = served.speculative.withheld(needs)
    return None, _DOWN if withheld is None else Health(speculative_available=False, withheld=withheld)
