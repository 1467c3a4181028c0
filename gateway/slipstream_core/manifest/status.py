"""The `status` that the operator writes and the gateway reads: facts, in the terms of Kubernetes' API conventions.

Times are RFC 3339 in UTC. Fields that this version does not know are ignored, so that versions may be mixed. A status
that does not fit these types was written by hand and counts as unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

_Status = TypeVar("_Status")

MAX_DECISIONS = 10
MAX_CLASSES = 40
MAX_LAST_GOOD_CHARS = 65_536
MAX_SERVED = 10

ConditionStatus = Literal["True", "False", "Unknown"]
Time = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "date-time"})]


class ConditionType(StrEnum):
    """The condition types of an object."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    RESOLVED_REFS = "ResolvedRefs"
    TOKENIZER_COMPATIBLE = "TokenizerCompatible"
    SPECULATION_AVAILABLE = "SpeculationAvailable"
    PROGRESSING = "Progressing"
    ANALYSIS_CONCLUSIVE = "AnalysisConclusive"
    ROLLED_BACK = "RolledBack"
    SERVERS_SLOW = "ServersSlow"
    HELD = "Held"
    KILL_SWITCH_ACTIVE = "KillSwitchActive"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class Phase(StrEnum):
    """The phase of a class.

    `Progressing`: at a step of the rollout. `Promoted`: past all steps. `RolledBack`: rolled back, for a cool-down or
    permanently. `Stale`: without outcomes for too long. `Enabled` and `Disabled`: set by a rule of the policy.
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
    status: Annotated[ConditionStatus, Meta(description="Whether the condition holds.")]
    reason: Annotated[str, Meta(max_length=1024, description="Reason as one stable word.")]
    message: Annotated[str, Meta(max_length=32_768, description="Reason with numbers, for people.")]
    last_transition_time: Annotated[Time, Meta(description="Time of the last change of status.")]
    observed_generation: Annotated[
        int, Meta(ge=0, description="Generation of the spec that the condition describes.")
    ] = 0


class LastGood(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last usable spec, which is in effect while the newest is unusable."""

    generation: Annotated[int, Meta(ge=0, description="The generation of that spec.")]
    # As text: in a merge patch, a null within the spec would delete the field.
    spec: Annotated[str, Meta(max_length=MAX_LAST_GOOD_CHARS, description="The spec as JSON, without its kill switch.")]


class NameHolder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The namespace that has a model name, or had it and may create its pair again."""

    model: Annotated[str, Meta(max_length=256, description="The name.")]
    namespace: Annotated[str, Meta(max_length=63, description="Namespace that the name is reserved for.")]
    until: Annotated[
        Time | None,
        Meta(description="End of the reservation; null: the name is reserved while a pair there serves it."),
    ] = None


class GatewaysStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The gateways that have applied the object. When all are `synced`, a kill has taken effect everywhere."""

    synced: Annotated[int, Meta(ge=0, description="Gateways that have applied this generation.")] = 0
    total: Annotated[int, Meta(ge=0, description="Gateways that watch this namespace and are alive.")] = 0
    oldest_generation: Annotated[
        int | None, Meta(description="Oldest generation in use by any gateway; null without gateways.")
    ] = None


class Replicas(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The servers of a pair."""

    ready: Annotated[int, Meta(ge=0, description="Ready servers.")] = 0
    desired: Annotated[int, Meta(ge=0, description="Desired servers.")] = 0
    current: Annotated[int, Meta(ge=0, description="Servers that exist, ready or not.")] = 0


class CanaryPhase(StrEnum):
    """The phase of a new revision.

    `Starting`: its servers start. `Comparing`: it gets a share of the requests. `Promoted`: it is the version in
    effect. `RolledBack`: it was taken back, until the revision or its retryToken changes.
    """

    STARTING = "Starting"
    COMPARING = "Comparing"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"


class CanaryStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The newest revision that is or was compared with the serving one."""

    revision: Annotated[str, Meta(max_length=64, description="The revision: a hash of its spec.")]
    serving: Annotated[str, Meta(max_length=64, description="The revision that serves meanwhile.")] = ""
    retry_token: Annotated[str | None, Meta(description="retryToken of the comparison.")] = None
    phase: Annotated[CanaryPhase, Meta(description="Phase of the revision.")]
    share: Annotated[float, Meta(ge=0, le=1, description="Share of the requests that its servers get.")] = 0.0
    since: Annotated[str, Meta(max_length=64, description="Start of the phase.")] = ""
    rule: Annotated[str, Meta(max_length=64, description="Rule that ended the comparison.")] = ""
    message: Annotated[str, Meta(max_length=1024, description="Reason for the phase.")] = ""
    samples: Annotated[int, Meta(ge=0, description="Answers of its servers in the comparison.")] = 0
    change: Annotated[
        float | None,
        Meta(description="Change of the mean time of an answer from the serving revision, as a share; null: unknown."),
    ] = None


class ObjectStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Observed state of an object."""

    observed_generation: Annotated[int, Meta(ge=0, description="Generation that this status describes.")] = 0
    state: Annotated[str, Meta(max_length=64, description="State of the object in one word.")] = ""
    reason: Annotated[str, Meta(max_length=256, description="Reason of the most important condition.")] = ""
    speculating: Annotated[
        str, Meta(max_length=64, description="Classes that speculate, of all classes seen: 3/8.")
    ] = ""
    accept: Annotated[str, Meta(max_length=32, description="Acceptance rate over all classes.")] = ""
    p95: Annotated[str, Meta(max_length=32, description="p95 of the end-to-end latency of speculative answers.")] = ""
    gateways: Annotated[GatewaysStatus, Meta(description="Gateways that have applied this spec.")] = GatewaysStatus()
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=16, description="Conditions of the object.")] = ()
    last_good: Annotated[LastGood | None, Meta(description="Spec that is in effect while the newest is unusable.")] = (
        None
    )


class ModelPairStatus(ObjectStatus, frozen=True, kw_only=True):
    """Observed state of a pair."""

    replicas: Annotated[Replicas, Meta(description="Servers of the pair.")] = Replicas()
    selector: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Label selector of the pair's servers, for autoscalers; empty: the operator runs none.",
        ),
    ] = ""
    last_request_time: Annotated[
        Time | None, Meta(description="Time of the last client request, to the minute; null: unknown.")
    ] = None
    canary: Annotated[
        CanaryStatus | None, Meta(description="Newest revision that is or was compared with the serving one.")
    ] = None
    served: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(max_length=MAX_SERVED, description="Revisions that all servers have had, newest first."),
    ] = ()
    name_holder: Annotated[
        NameHolder | None, Meta(description="Namespace that holds the model name which the pair waits for.")
    ] = None
    in_use: Annotated[bool, Meta(description="true: clients have requested the pair within the last five minutes.")] = (
        False
    )


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The latest figures of an arm in a class. Null: not measured."""

    samples: Annotated[int, Meta(ge=0, description="Answers within the window.")] = 0
    accept: Annotated[float | None, Meta(description="Mean acceptance rate per answer.")] = None
    p95_seconds: Annotated[float | None, Meta(description="p95 of the end-to-end latency.")] = None
    ttft_p95_seconds: Annotated[float | None, Meta(description="p95 of the time to first token.")] = None
    mean_seconds: Annotated[float | None, Meta(description="Mean end-to-end latency.")] = None
    cost: Annotated[float | None, Meta(description="Mean cost of an answer, in the price's currency.")] = None
    error_rate: Annotated[float | None, Meta(description="Share of failed requests.")] = None


class LastDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A transition of a class, or of the whole policy, with its figures."""

    time: Annotated[Time, Meta(description="When.")]
    rule: Annotated[str, Meta(max_length=64, description="Name of the transition, such as Promote or AcceptanceGuard.")]
    name: Annotated[str, Meta(max_length=64, description="Request class; empty for the whole policy.")] = ""
    from_phase: Annotated[str, Meta(max_length=32, description="Phase before the transition.")] = ""
    to_phase: Annotated[str, Meta(max_length=32, description="Phase after the transition.")] = ""
    share: Annotated[float | None, Meta(description="Share after the transition.")] = None
    metric: Annotated[str, Meta(max_length=64, description="Name of the measure.")] = ""
    observed: Annotated[float | None, Meta(description="Observed value.")] = None
    bound: Annotated[float | None, Meta(description="Confidence bound, or the guard's statistic.")] = None
    threshold: Annotated[float | None, Meta(description="Threshold that the bound was compared with.")] = None
    samples: Annotated[int, Meta(ge=0, description="Number of answers behind the value.")] = 0
    message: Annotated[str, Meta(max_length=1024, description="The transition as a sentence, for people.")] = ""


class ClassStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a request class."""

    name: Annotated[str, Meta(max_length=64, description="task/length.")]
    phase: Annotated[Phase, Meta(description="Phase of the class.")]
    share: Annotated[float, Meta(ge=0, le=1, description="Share of the requests that would speculate and may do so.")]
    hold_back_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of these that decodes plainly as the control; null: the policy's holdBackShare."),
    ] = None
    hold_back_since: Annotated[str, Meta(max_length=64, description="Time of the last change of holdBackShare.")] = ""
    step: Annotated[int, Meta(ge=0, description="Step of the rollout, from 0.")] = 0
    since: Annotated[str, Meta(max_length=64, description="Start of the phase or step.")] = ""
    retries: Annotated[int, Meta(ge=0, description="Retries of this spec so far.")] = 0
    retry_at: Annotated[Time | None, Meta(description="Start of the next retry; null: none is scheduled.")] = None
    spec_hash: Annotated[
        str,
        Meta(max_length=64, description="Hash of the part of the spec that concerns the class; another restarts it."),
    ] = ""
    message: Annotated[str, Meta(max_length=1024, description="Reason for the phase.")] = ""
    decided_plain: Annotated[
        float | None,
        Meta(description="Share of the latest answers that were decoded plainly because speculation would not pay."),
    ] = None
    speculative: Annotated[ArmFigures, Meta(description="Latest figures of speculative answers.")] = ArmFigures()
    control: Annotated[ArmFigures, Meta(description="Latest figures of the control.")] = ArmFigures()
    last_decision: Annotated[LastDecision | None, Meta(description="The last transition.")] = None


class SpeculationPolicyStatus(ObjectStatus, frozen=True, kw_only=True):
    """Observed state of a policy."""

    spec_hash: Annotated[
        str, Meta(max_length=64, description="Hash of the whole spec that the classes were judged under.")
    ] = ""
    retry_token: Annotated[str | None, Meta(description="Last retryToken that was applied.")] = None
    classes: Annotated[
        tuple[ClassStatus, ...], Meta(max_length=MAX_CLASSES, description="Classes that have had requests.")
    ] = ()
    decisions: Annotated[
        tuple[LastDecision, ...], Meta(max_length=MAX_DECISIONS, description="Latest transitions, newest first.")
    ] = ()
    checkpoint: Annotated[
        str,
        Meta(
            max_length=262_144,
            description="Internal state of the operator: the states of the classes, with a checksum.",
        ),
    ] = ""


def read_status(raw: object, kind: type[_Status]) -> _Status | None:
    """A status, or a part of one, as its type; None if there is none, or if it was edited and is invalid."""
    try:
        return msgspec.convert(raw, kind) if raw else None
    except msgspec.ValidationError:
        return None


def part_of(raw_status: object, name: str, kind: type[_Status]) -> _Status | None:
    """The part `name` of a status as its type, as from `read_status`."""
    return read_status(raw_status.get(name), kind) if isinstance(raw_status, Mapping) else None
