"""What the operator writes into `status` and the gateway reads: facts, in the words of Kubernetes' API conventions.

Times are RFC 3339 in UTC. Fields that this version does not know are ignored, so that versions may be mixed; a
status that does not fit these types was written by hand, and counts as not readable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_DECISIONS = 10
MAX_CLASSES = 40
MAX_LAST_GOOD_CHARS = 65_536

ConditionStatus = Literal["True", "False", "Unknown"]
Time = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "date-time"})]


class ConditionType(StrEnum):
    """The aspects of an object that have a condition of their own."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    RESOLVED_REFS = "ResolvedRefs"
    TOKENIZER_COMPATIBLE = "TokenizerCompatible"
    SPECULATION_AVAILABLE = "SpeculationAvailable"
    PROGRESSING = "Progressing"
    ANALYSIS_CONCLUSIVE = "AnalysisConclusive"
    ROLLED_BACK = "RolledBack"
    SERVERS_SLOW = "ServersSlow"
    KILL_SWITCH_ACTIVE = "KillSwitchActive"


class Phase(StrEnum):
    """How far a class is.

    `Progressing`: at a step of the rollout. `Promoted`: through all of them. `RolledBack`: taken back, for a cool-down
    or for good. `Stale`: nothing was heard of it for too long. `Enabled` and `Disabled`: a rule of the policy says so.
    """

    PROGRESSING = "Progressing"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"
    STALE = "Stale"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One aspect of an object: `metav1.Condition`."""

    type: Annotated[str, Meta(max_length=316, description="The aspect.")]
    status: Annotated[ConditionStatus, Meta(description="Whether it holds.")]
    reason: Annotated[str, Meta(max_length=1024, description="Why, as one stable word.")]
    message: Annotated[str, Meta(max_length=32_768, description="Why, with numbers, for people.")]
    last_transition_time: Annotated[Time, Meta(description="When the status changed last.")]
    observed_generation: Annotated[int, Meta(ge=0, description="The spec that this was said of.")] = 0


class LastGood(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last spec that could be used: it counts while the newest cannot be."""

    generation: Annotated[int, Meta(ge=0, description="The generation of that spec.")]
    # As text: in a merge patch, a null within would say that the field goes away.
    spec: Annotated[str, Meta(max_length=MAX_LAST_GOOD_CHARS, description="The spec as JSON, without its kill switch.")]


class NameHolder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The namespace that has a model name, or had it and may make its pair anew."""

    model: Annotated[str, Meta(max_length=256, description="The name.")]
    namespace: Annotated[str, Meta(max_length=63, description="The namespace that it is kept for.")]
    until: Annotated[
        Time | None, Meta(description="Until when it is kept; null: for as long as a pair there serves it.")
    ] = None


class GatewaysStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far the object has come to the gateways. With all `synced`, a kill has landed."""

    synced: Annotated[int, Meta(ge=0, description="Gateways that have applied this generation.")] = 0
    total: Annotated[int, Meta(ge=0, description="Gateways that watch this namespace and are alive.")] = 0
    oldest_generation: Annotated[
        int | None, Meta(description="The oldest generation that any gateway still goes by; null without gateways.")
    ] = None


class Replicas(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pair's servers."""

    ready: Annotated[int, Meta(ge=0, description="Servers that answer.")] = 0
    desired: Annotated[int, Meta(ge=0, description="Servers that there should be.")] = 0


class ModelPairStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a pair."""

    observed_generation: Annotated[int, Meta(ge=0, description="The spec that this status is of.")] = 0
    state: Annotated[str, Meta(max_length=64, description="The pair in one word.")] = ""
    reason: Annotated[str, Meta(max_length=256, description="The most important condition's reason.")] = ""
    speculating: Annotated[str, Meta(max_length=64, description="Classes that speculate, of those seen: 3/8.")] = ""
    accept: Annotated[str, Meta(max_length=32, description="Acceptance rate over all classes.")] = ""
    p95: Annotated[str, Meta(max_length=32, description="p95 of the speculative answers, end to end.")] = ""
    replicas: Annotated[Replicas, Meta(description="The pair's servers.")] = Replicas()
    last_request_time: Annotated[
        Time | None, Meta(description="When clients asked for the pair last, to the minute; null: not known.")
    ] = None
    name_holder: Annotated[
        NameHolder | None, Meta(description="The namespace whose model name the pair waits for.")
    ] = None
    in_use: Annotated[bool, Meta(description="Whether clients asked for the pair within the last five minutes.")] = (
        False
    )
    gateways: Annotated[GatewaysStatus, Meta(description="How far this spec has come.")] = GatewaysStatus()
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=16, description="The pair's aspects.")] = ()
    last_good: Annotated[LastGood | None, Meta(description="What is served while the newest spec cannot be.")] = None


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An arm's latest figures in a class. Null: nothing was measured."""

    samples: Annotated[int, Meta(ge=0, description="Answers within the window.")] = 0
    accept: Annotated[float | None, Meta(description="Mean acceptance rate per answer.")] = None
    p95_seconds: Annotated[float | None, Meta(description="p95 end to end.")] = None
    ttft_p95_seconds: Annotated[float | None, Meta(description="p95 of the time to first token.")] = None
    mean_seconds: Annotated[float | None, Meta(description="Mean end to end.")] = None
    cost: Annotated[float | None, Meta(description="Mean cost of an answer, in the price's currency.")] = None
    error_rate: Annotated[float | None, Meta(description="Share of failed requests.")] = None


class LastDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A transition of a class, or of the whole policy, with what led to it."""

    time: Annotated[Time, Meta(description="When.")]
    rule: Annotated[str, Meta(max_length=64, description="What was applied, such as Promote or AcceptanceGuard.")]
    name: Annotated[str, Meta(max_length=64, description="The class; empty for the whole policy.")] = ""
    from_phase: Annotated[str, Meta(max_length=32, description="The phase before.")] = ""
    to_phase: Annotated[str, Meta(max_length=32, description="The phase after.")] = ""
    share: Annotated[float | None, Meta(description="The share after.")] = None
    metric: Annotated[str, Meta(max_length=64, description="What was measured.")] = ""
    observed: Annotated[float | None, Meta(description="What was seen.")] = None
    bound: Annotated[float | None, Meta(description="The confidence bound, or the guard's statistic.")] = None
    threshold: Annotated[float | None, Meta(description="What the bound was held against.")] = None
    samples: Annotated[int, Meta(ge=0, description="Answers behind it.")] = 0
    message: Annotated[str, Meta(max_length=1024, description="The same for people.")] = ""


class ClassStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a class is."""

    name: Annotated[str, Meta(max_length=64, description="task/length.")]
    phase: Annotated[Phase, Meta(description="How far the class is.")]
    share: Annotated[float, Meta(ge=0, le=1, description="Share of what would speculate that does.")]
    hold_back_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of these that decodes plainly as the control; null: the policy's holdBackShare."),
    ] = None
    hold_back_since: Annotated[str, Meta(max_length=64, description="When holdBackShare changed last.")] = ""
    step: Annotated[int, Meta(ge=0, description="Step of the rollout, from 0.")] = 0
    since: Annotated[str, Meta(max_length=64, description="When the phase or the step began.")] = ""
    retries: Annotated[int, Meta(ge=0, description="Retries of this spec so far.")] = 0
    retry_at: Annotated[Time | None, Meta(description="When the next retry begins; null: never by itself.")] = None
    message: Annotated[str, Meta(max_length=1024, description="Why the class is where it is.")] = ""
    decided_plain: Annotated[
        float | None,
        Meta(description="Share of the latest answers that were decoded plainly because speculation would not pay."),
    ] = None
    speculative: Annotated[ArmFigures, Meta(description="Latest figures of speculative answers.")] = ArmFigures()
    control: Annotated[ArmFigures, Meta(description="Latest figures of the control.")] = ArmFigures()
    last_decision: Annotated[LastDecision | None, Meta(description="The last transition.")] = None


class SpeculationPolicyStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of a policy."""

    observed_generation: Annotated[int, Meta(ge=0, description="The spec that this status is of.")] = 0
    spec_hash: Annotated[str, Meta(max_length=64, description="What rollbacks are tied to.")] = ""
    retry_token: Annotated[str | None, Meta(description="The retryToken that was honoured last.")] = None
    state: Annotated[str, Meta(max_length=64, description="The policy in one word.")] = ""
    reason: Annotated[str, Meta(max_length=256, description="The most important condition's reason.")] = ""
    speculating: Annotated[str, Meta(max_length=64, description="Classes that speculate, of those seen: 3/8.")] = ""
    accept: Annotated[str, Meta(max_length=32, description="Acceptance rate over all classes.")] = ""
    p95: Annotated[str, Meta(max_length=32, description="p95 of the speculative answers, end to end.")] = ""
    classes: Annotated[
        tuple[ClassStatus, ...], Meta(max_length=MAX_CLASSES, description="The classes that were seen.")
    ] = ()
    decisions: Annotated[
        tuple[LastDecision, ...], Meta(max_length=MAX_DECISIONS, description="The latest transitions, newest first.")
    ] = ()
    gateways: Annotated[GatewaysStatus, Meta(description="How far this spec has come.")] = GatewaysStatus()
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=16, description="The policy's aspects.")] = ()
    last_good: Annotated[LastGood | None, Meta(description="What is served while the newest spec cannot be.")] = None
    checkpoint: Annotated[
        str, Meta(max_length=262_144, description="The operator's own: guards and how far outcomes were read.")
    ] = ""
