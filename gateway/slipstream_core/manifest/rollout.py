"""How speculation is brought to a class step by step, what it is held to, and how it is taken back.

All of it is the operator's business: with a manifest as a file nobody promotes and nobody rolls back.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_SECONDS = 3600
MAX_STEPS = 16

Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What speculation must keep to in a class. What is left out is not guarded, or the policy's for a class."""

    acceptance_floor: Annotated[
        Share | None, Meta(description="Mean share of draft tokens per answer that are accepted: at least this.")
    ] = None
    p95_seconds: Annotated[
        Seconds | None, Meta(description="At most 5 % of the speculative answers may take longer, end to end.")
    ] = None
    ttft_p95_seconds: Annotated[
        Seconds | None, Meta(description="At most 5 % of the streamed answers may wait longer for the first token.")
    ] = None
    ttft_increase: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(
            description="Mean time to the first token of streamed answers over the control's: at most this share more."
        ),
    ] = None
    cost_increase: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="Mean cost of a speculative answer over that of the control: at most this share more."),
    ] = None
    parity_loss: Annotated[
        Share | None, Meta(description="Share of replayed answers that may differ from the plain ones.")
    ] = None
    error_rate: Annotated[
        Share | None,
        Meta(description="Share of the speculative requests that may fail; without it, 0.05."),
    ] = None


DEFAULT_ERROR_RATE = 0.05


def effective(policy: Thresholds, rule: Thresholds | None) -> Thresholds:
    """What a class is held to: what its rule says, else the policy; a limit for errors there is always."""
    values: dict[str, float | None] = {}
    for name in Thresholds.__struct_fields__:
        own = getattr(rule, name) if rule is not None else None
        values[name] = getattr(policy, name) if own is None else own
    if values["error_rate"] is None:
        values["error_rate"] = DEFAULT_ERROR_RATE
    return Thresholds(**values)


class Analysis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How sure the operator must be. The request is the unit."""

    min_samples: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Answers of an arm before it is judged in a class.")
    ] = 200
    window_seconds: Annotated[
        int, Meta(ge=10, le=86_400, description="How far back the figures of the status look.")
    ] = 600
    false_alarm_requests: Annotated[
        int,
        Meta(
            ge=100, le=1_000_000_000, description="Requests exactly at a threshold between two false alarms, at least."
        ),
    ] = 20_000
    confidence: Annotated[
        float, Meta(gt=0.5, lt=1, description="Confidence that a step's gain is real before the next one.")
    ] = 0.95


class RolloutStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One step of a class's rollout."""

    share: Annotated[
        float, Meta(gt=0, le=1, description="Share of the requests for which speculation pays that speculate.")
    ]
    soak_seconds: Annotated[int, Meta(ge=0, le=604_800, description="How long the step lasts at least.")] = 600


class Rollout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """From a small share of a class's traffic to all of it."""

    steps: Annotated[
        tuple[RolloutStep, ...], Meta(min_length=1, max_length=MAX_STEPS, description="In order; shares must rise.")
    ] = (
        RolloutStep(share=0.05),
        RolloutStep(share=0.25),
        RolloutStep(share=0.5),
        RolloutStep(share=1.0),
    )


class Rollback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What happens when a class breaks a threshold, and when nobody knows."""

    cool_down_seconds: Annotated[
        int, Meta(ge=0, le=604_800, description="Pause before the first retry; it doubles with each.")
    ] = 600
    max_cool_down_seconds: Annotated[
        int, Meta(ge=0, le=2_592_000, description="The longest pause between retries.")
    ] = 86_400
    reenable_margin: Annotated[
        float,
        Meta(ge=0, lt=1, description="A retry must keep to thresholds that are stricter by this share until its end."),
    ] = 0.05
    max_retries: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Retries, given back to a class that stays promoted for maxCoolDownSeconds; after them, a new"
            " spec or retryToken is needed.",
        ),
    ] = 3
    stale_after_seconds: Annotated[
        int, Meta(ge=10, le=604_800, description="Without any outcome of a class for this long, failMode applies.")
    ] = 3600
    fail_mode: Annotated[
        Literal["plain", "hold"], Meta(description="plain: the class decodes plainly; hold: it stays as it is.")
    ] = "plain"
