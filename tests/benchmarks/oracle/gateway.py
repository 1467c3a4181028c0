"""The gateway's decision as a policy: the product's classifier, learner and decision on simulated servers.

The learner gets the simulated outcome of each request, as in service. `Parts` are taken away by a change
of the inputs or of the results of the product's functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from random import Random
from typing import NamedTuple

import msgspec
from slipstream_core.manifest import EMBEDDED_MANIFEST, Route, load_file
from slipstream_core.observation import Estimate, Forecast, Level, Observation, Subject
from slipstream_core.types import Arm, Decision, GenerationRequest, RequestProfile
from slipstream_gateway.api.parse import parse_request
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import ForecastQuery, Learner, subject_of
from slipstream_gateway.decide.route import DecisionInputs, Health, decide, fresh_draws

from tests.benchmarks.oracle.recordings import Recorded
from tests.benchmarks.oracle.simulation import LONGEST_DRAFT, Choice, Done


class Parts(NamedTuple):
    """The parts of the decision, and `callers`, the API keys among which requests are distributed at random. `learns`:
    outcomes are learnt at all. `keys`: the learner tells keys apart. `pressure` is constant."""

    learns: bool = True
    classes: bool = True
    lengths: bool = True
    acceptance: bool = True
    rare: bool = True
    curves: bool = True
    neighbours: bool = True
    uncertainty: bool = True
    shares: bool = True
    margin: bool = True
    keys: bool = True
    callers: int = 4
    pressure: float = 0.0


class Gateway:
    """One gateway that starts with nothing learnt."""

    def __init__(self, parts: Parts, seed: int, *, adaptive: bool = False) -> None:
        self._parts, self._adaptive = parts, adaptive
        self._learner, self._route = Learner(), _route(parts)
        self._random = Random(f"gateway {seed}")
        self._open: dict[int, tuple[Subject, RequestProfile, Decision]] = {}

    def start(self, index: int, recorded: Recorded, load: int, neighbours: float) -> Choice:
        request, profile = _read(recorded)
        if not self._parts.rare:
            profile = msgspec.structs.replace(profile, rare_probability=0.0, rare_token_share=0.0)
        key = str(self._random.randrange(self._parts.callers)) if self._parts.keys else ""
        subject = subject_of(profile, request.temperature, pair=self._route.key, key_id=key)
        if not self._parts.classes:
            subject = msgspec.structs.replace(subject, cold_class="open_chat/medium")
        learner = self._learner if self._parts.learns else Learner()
        expected = self._without(learner.forecast(self._query(subject, profile, request, load, neighbours)), profile)
        decision = decide(
            DecisionInputs(
                request,
                profile,
                self._route,
                forecast=expected,
                draws=fresh_draws(self._random.randbytes),
                health=Health(longest_draft=LONGEST_DRAFT, adaptive=self._adaptive),
                pressure=self._parts.pressure,
            )
        )
        self._open[index] = subject, profile, decision
        counted = decision.step_draft_tokens
        return Choice(decision.draft_length, decision.adaptive, counted, decision.unconditional)

    def done(self, index: int, recorded: Recorded, done: Done) -> None:
        subject, profile, decision = self._open.pop(index)
        if self._parts.learns:
            self._learner.record(_observation(subject, profile, decision, recorded, done, self._load(done.load)))

    def _query(
        self, subject: Subject, profile: RequestProfile, request: GenerationRequest, load: int, neighbours: float
    ) -> ForecastQuery:
        at = self._load(float(load))
        return ForecastQuery(
            subject, profile, plain_pool="servers", speculative_pool="servers", plain_load=at, speculative_load=at,
            max_tokens=request.max_tokens,
            neighbours_draft_length=neighbours if self._parts.neighbours else 0.0,
        )  # fmt: skip

    def _load(self, load: float) -> float:
        return load if self._parts.curves else 1.0

    def _without(self, forecast: Forecast, profile: RequestProfile) -> Forecast:
        """`forecast` without the parts that are taken away."""
        parts = self._parts
        if not parts.lengths:
            guess = Estimate(mean=profile.expected_output_tokens, se=0.0, samples=0.0, level=Level.PRIOR)
            forecast = msgspec.structs.replace(forecast, output_tokens=guess)
        if not parts.acceptance and forecast.acceptance is not None:
            guess = Estimate(mean=0.65, se=0.1, samples=0.0, level=Level.PRIOR)
            forecast = msgspec.structs.replace(forecast, acceptance=guess)
        return forecast if parts.uncertainty else _certain(forecast)


def _certain(forecast: Forecast) -> Forecast:
    fields: Mapping[str, object] = {
        name: msgspec.structs.replace(value, se=0.0)
        for name in forecast.__struct_fields__
        if isinstance(value := getattr(forecast, name), Estimate)
    }
    return msgspec.structs.replace(forecast, **fields)


@cache
def _classifier() -> LinearClassifier:
    return LinearClassifier(default_model())


_PROFILES: dict[int, tuple[GenerationRequest, RequestProfile]] = {}


def _read(recorded: Recorded) -> tuple[GenerationRequest, RequestProfile]:
    """The parsed request and its profile, which are the same for each policy."""
    found = _PROFILES.get(id(recorded))
    if found is None:
        request = parse_request(msgspec.json.encode(recorded.request))
        found = _PROFILES[id(recorded)] = request, _classifier().classify(request)
    return found


@cache
def _route(parts: Parts) -> Route:
    """A pair on vLLM, which supports tools, with the longest draft of the simulation."""
    route = next(iter(load_file(EMBEDDED_MANIFEST.with_name("embedded-vllm.yaml")).routes.values()))
    assert route.policy is not None
    changes = {} if parts.shares else {"hold_back_share": 0.0, "exploration_share": 0.0}
    if not parts.margin:
        changes["margin"] = 0.0
    spec = msgspec.structs.replace(route.policy.spec, **changes)
    pair = msgspec.structs.replace(
        route.pair, spec=msgspec.structs.replace(route.pair.spec, max_draft_tokens=LONGEST_DRAFT)
    )
    return msgspec.structs.replace(route, policy=msgspec.structs.replace(route.policy, spec=spec), pair=pair)


def _observation(
    subject: Subject, profile: RequestProfile, decision: Decision, recorded: Recorded, done: Done, load: float
) -> Observation:
    speculative = decision.arm is Arm.SPECULATIVE
    return Observation(
        subject=subject,
        request_class=decision.request_class,
        arm=decision.arm,
        reason=decision.reason,
        draft_length=decision.draft_length,
        pool="servers",
        status="ok",
        prompt_tokens=profile.prompt_tokens,
        output_tokens=recorded.tokens,
        drafted=done.drafted if speculative else 0,
        accepted=done.accepted if speculative else 0,
        rejections=done.rejections if speculative else 0,
        steps=done.steps,
        ttft_s=done.ttft_s,
        e2e_s=done.e2e_s,
        load=load,
        batch_draft_length=done.batch_draft_length,
        price_per_gpu_hour=None,
        time_s=done.ended_s,
        cut=recorded.tokens >= recorded.request["max_tokens"],
    )
