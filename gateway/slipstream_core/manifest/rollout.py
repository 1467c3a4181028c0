"""Types of a class's rollout: its steps, its thresholds and its rollback.

They concern the operator alone: with a manifest file, classes are neither promoted nor rolled back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slipstream_core.manifest.base import Share, Spec

MAX_SECONDS = 3600
MAX_STEPS = 16

Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]


class Thresholds(Spec, frozen=True, kw_only=True):
    """Thresholds that speculation must keep in a class. A field that is left out is not guarded, or in a class rule has
    the policy's value."""

    acceptance_floor: Annotated[Share | None, Meta(description="Minimum of the mean acceptance rate per answer.")] = (
        None
    )
    p95_seconds: Annotated[
        Seconds | None, Meta(description="Maximum p95 end-to-end latency of speculative answers.")
    ] = None
    ttft_p95_seconds: Annotated[
        Seconds | None, Meta(description="Maximum p95 of the time to first token of streamed answers.")
    ] = None
    ttft_increase: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(
            description="Maximum increase of the mean time to first token of streamed answers over the control, as a "
            "share."
        ),
    ] = None
    cost_increase: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="Maximum increase of the mean cost of a speculative answer over the control, as a share."),
    ] = None
    parity_loss: Annotated[
        Share | None, Meta(description="Maximum share of replayed answers that differ from the plain ones.")
    ] = None
    error_rate: Annotated[
        Share | None,
        Meta(description="Maximum share of speculative requests that fail. Default: 0.05."),
    ] = None


DEFAULT_ERROR_RATE = 0.05


def effective(policy: Thresholds, rule: Thresholds | None) -> Thresholds:
    """The effective thresholds of a class: its rule's, else the policy's. The limit for errors always exists."""
    values: dict[str, float | None] = {}
    for name in Thresholds.__struct_fields__:
        own = getattr(rule, name) if rule is not None else None
        values[name] = getattr(policy, name) if own is None else own
    if values["error_rate"] is None:
        values["error_rate"] = DEFAULT_ERROR_RATE
    return Thresholds(**values)


class Analysis(Spec, frozen=True, kw_only=True):
    """Statistical requirements of the operator's verdicts. The unit is the request."""

    min_samples: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Minimum number of answers per arm before a class is judged.")
    ] = 200
    window_seconds: Annotated[int, Meta(ge=10, le=86_400, description="Time window of the figures in the status.")] = (
        600
    )
    false_alarm_requests: Annotated[
        int,
        Meta(
            ge=100,
            le=1_000_000_000,
            description="Minimum mean number of requests between two false alarms, for a class that is exactly at a "
            "threshold.",
        ),
    ] = 20_000
    confidence: Annotated[
        float, Meta(gt=0.5, lt=1, description="Confidence that a step's gain is real, required for the next step.")
    ] = 0.95


class RolloutStep(Spec, frozen=True, kw_only=True):
    """One step of a class's rollout."""

    share: Annotated[
        float, Meta(gt=0, le=1, description="Share of the requests for which speculation pays that speculate.")
    ]
    soak_seconds: Annotated[int, Meta(ge=0, le=604_800, description="Minimum duration of the step.")] = 600


class Rollout(Spec, frozen=True, kw_only=True):
    """Steps from a small share of a class's traffic to all of it."""

    steps: Annotated[
        tuple[RolloutStep, ...],
        Meta(min_length=1, max_length=MAX_STEPS, description="Steps in order; their shares must rise."),
    ] = (
        RolloutStep(share=0.05),
        RolloutStep(share=0.25),
        RolloutStep(share=0.5),
        RolloutStep(share=1.0),
    )


class Rollback(Spec, frozen=True, kw_only=True):
    """Behaviour after a class breaks a threshold, and without outcomes."""

    cool_down_seconds: Annotated[
        int, Meta(ge=0, le=604_800, description="Pause before the first retry; it doubles with each retry.")
    ] = 600
    max_cool_down_seconds: Annotated[int, Meta(ge=0, le=2_592_000, description="Maximum pause between retries.")] = (
        86_400
    )
    reenable_margin: Annotated[
        float,
        Meta(ge=0, lt=1, description="Share by which thresholds are stricter for the duration of a retry."),
    ] = 0.05
    max_retries: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Maximum number of retries. The count restarts for a class that stays promoted for "
            "maxCoolDownSeconds. After the last retry, an edit that concerns the class or a new retryToken starts it "
            "again.",
        ),
    ] = 3
    stale_after_seconds: Annotated[
        int, Meta(ge=10, le=604_800, description="Time without outcomes of a class after which failMode applies.")
    ] = 3600
    fail_mode: Annotated[
        Literal["plain", "hold"], Meta(description="plain: the class decodes plainly; hold: it keeps its share.")
    ] = "plain"
