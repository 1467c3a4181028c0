"""`slipstream route`: explains the decision for a request without running it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from slipstream_core.errors import CommandError, ModelNotFound, RequestError, named_os_errors
from slipstream_core.manifest import Route, RoutingTable, load_file
from slipstream_core.observation import Forecast
from slipstream_core.types import Decision, GenerationRequest, RequestProfile
from slipstream_gateway.api.parse import parse_request
from slipstream_gateway.api.request import RequestOverrides
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import ForecastQuery, Learner, subject_of
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, decide, explanation

_MAX_BODY_BYTES = 32 * 1024 * 1024


def run(args: argparse.Namespace) -> int:
    table = load_file(args.manifest)
    try:
        request = parse_request(_read(args.file), RequestOverrides(mode=args.mode))
        route = _route(table, request)
        profile = LinearClassifier(default_model()).explain(request)
        decision = decide(
            DecisionInputs(
                request,
                profile,
                route,
                forecast=forecast(Learner(), request, profile, route, load=1.0),
                draws=NO_DRAWS,
                pressure=args.pressure,
            )
        )
    except RequestError as error:
        raise CommandError(str(error)) from error
    print(_as_json(route, profile, decision) if args.json else _as_text(route, profile, decision))
    return 0


def _read(file: str) -> bytes:
    with named_os_errors(f"{file}: cannot be read", exit_code=2):
        if file == "-":
            data = sys.stdin.buffer.read(_MAX_BODY_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(_MAX_BODY_BYTES + 1)
    if len(data) > _MAX_BODY_BYTES:
        raise CommandError(f"{file}: the body exceeds {_MAX_BODY_BYTES} bytes", exit_code=2)
    return data


def _route(table: RoutingTable, request: GenerationRequest) -> Route:
    route = table.find(request.model)
    if route is None:
        known = ", ".join(table.models())
        raise CommandError(f"{ModelNotFound(request.model)} The manifest has: {known}.")
    return route


def forecast(
    learner: Learner, request: GenerationRequest, profile: RequestProfile, route: Route, *, load: float
) -> Forecast | None:
    """The forecast of `learner` for servers with `load` requests in flight each, this one included; None if the policy
    requires none."""
    if route.speculative is None or route.policy is None or route.policy.spec.decision == "rules":
        return None
    return learner.forecast(
        ForecastQuery(
            subject_of(profile, request.temperature, pair=route.key),
            profile,
            plain_pool=route.plain.pool,
            speculative_pool=route.speculative.pool,
            plain_load=load,
            speculative_load=load,
            max_tokens=request.max_tokens,
        )
    )


def _as_json(route: Route, profile: RequestProfile, decision: Decision) -> str:
    value = explanation(route.key, profile, decision)
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _as_text(route: Route, profile: RequestProfile, decision: Decision) -> str:
    rows: list[tuple[str, object]] = [
        ("model", f"{route.model} (ModelPair/{route.key})"),
        ("arm", decision.arm),
        ("reason", f"{decision.reason}: {decision.detail}"),
        ("class", decision.request_class),
        ("draft length", decision.draft_length),
    ]
    numbers = [(name.replace("_", " "), _number(value)) for name, value in decision.numbers.items()]
    width = max(len(name) for name, _ in [*rows, *numbers]) + 2
    lines = [f"{name:<{width}}{value}" for name, value in rows]
    lines += ["", "numbers", *(f"  {name:<{width}}{value}" for name, value in numbers)]
    return "\n".join([*lines, "", "evidence", *(f"  {line}" for line in profile.evidence)])


def _number(value: float | int | str | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
