"""The reasons of all conditions, in one table: each with its status and its message.

The reasons of pods are in `pods`, those of rollbacks in `rollout.trips`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Self

from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.status import ConditionStatus
from slipstream_core.manifest.versions import GoodVersion, to_keep

_MAX_LISTED = 5
_KILLED = "{}: every request decodes plainly; {}"


class Finding(NamedTuple):
    """One condition's content."""

    status: ConditionStatus
    reason: str
    message: str


class Reason(StrEnum):
    """A reason with its status and the template of its message. A call gives the `Finding` with the template's
    values."""

    status: ConditionStatus
    template: str

    # Accepted
    ACCEPTED = "Accepted", "True", "the spec is valid{}"
    INVALID_SPEC = "InvalidSpec", "False"
    MODEL_NAME_IN_USE = "ModelNameInUse", "False"
    COMPARING_REVISION = "ComparingRevision", "False", "revision {}: {}"
    REVISION_ROLLED_BACK = "RevisionRolledBack", "False", "revision {}: {}"
    # Ready and ResolvedRefs
    MINIMUM_REPLICAS_READY = "MinimumReplicasReady", "True"
    IDLE = "Idle", "True", "no server runs: the next request starts one"
    EXTERNAL = "External", "True"
    NOT_MANAGED = "NotManaged", "False"
    KIND_MISSING = (
        *("KindMissing", "False"),
        "servers of several nodes need the kind LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), which this cluster does "
        "not have: install it, or set spec.serving.nodes to 1",
    )
    ENDPOINTS_UNREACHABLE = "EndpointsUnreachable", "False", "no gateway reaches any server; {}"
    MODEL_NAME_TAKEN = "ModelNameTaken", "False"
    MODEL_NAME_NOT_GRANTED = "ModelNameNotGranted", "False"
    API_KEY_NOT_GRANTED = "ApiKeyNotGranted", "False"
    PRIVILEGES_FORBIDDEN = "PrivilegesForbidden", "False"
    UNRESOLVED = "Unresolved", "False"
    CHILDREN_REJECTED = "ChildrenRejected", "False"
    SCALED_TO_ZERO = "ScaledToZero", "True", "replicas is 0: no server runs"
    NO_READY_REPLICAS = "NoReadyReplicas", "False"
    RESOLVED = "Resolved", "True"
    IN_FORCE = "InForce", "True", "governs ModelPair {}{}"
    PAIR_NOT_FOUND = "PairNotFound", "False"
    PAIR_NOT_READY = (
        *("PairNotReady", "False"),
        "ModelPair {} is not ready, see its status: its requests decode plainly",
    )
    PAIR_SCALED_TO_ZERO = "PairScaledToZero", "True", "ModelPair {} is scaled to zero: no server runs"
    DISABLED = "Disabled", "True", "spec.enabled is false: every request decodes plainly"
    # TokenizerCompatible
    SAME_TOKENIZER = "SameTokenizer", "True"
    NO_DRAFT_MODEL = "NoDraftModel", "True", "the pair has no draft model, so there is only one tokenizer"
    TOKENIZER_MISMATCH = "TokenizerMismatch", "False", "{}. {}"
    NOT_CHECKED = "NotChecked", "Unknown"
    # SpeculationAvailable
    ALL_SERVERS = "AllServers", "True", "every server may speculate"
    GATEWAY_KILLED = "GatewayKilled", "False"
    ENGINE_NOT_LOSSLESS = "EngineNotLossless", "False"
    ENGINE_CANNOT = "EngineCannot", "False"
    ENGINE_UNVERIFIED = "EngineUnverified", "Unknown"
    NO_GATEWAY = "NoGateway", "Unknown", "no gateway reports"
    # Progressing
    ROLLING_OUT = "RollingOut", "True"
    COMPLETE = "Complete", "False"
    DEADLINE_EXCEEDED = "DeadlineExceeded", "False"
    HELD = "Held", "False", "{}; held: {}"
    DECIDED_PLAIN = "DecidedPlain", "False"
    NO_CLASSES = "NoClasses", "False", "no outcomes have been received for any class"
    # AnalysisConclusive
    CONCLUSIVE = "Conclusive", "True"
    INSUFFICIENT_SAMPLES = "InsufficientSamples", "False"
    PARITY_UNKNOWN = "ParityUnknown", "False"
    NO_DATA = "NoData", "False"
    STORE_UNREACHABLE = (
        *("StoreUnreachable", "False"),
        "the outcome store cannot be reached, or has not been read to its end: every class keeps its phase",
    )
    STALE = "Stale", "False", "no outcomes for {} s of {}: plain until outcomes arrive again"
    # RolledBack
    ROLLED_BACK = "RolledBack", "True"
    NOT_ROLLED_BACK = "NotRolledBack", "False", "no class is rolled back"
    # ServersSlow
    LIMITS_BROKEN = "LimitsBroken", "True", "the servers are slow or fail for both arms: {}"
    LIMITS_KEPT = "LimitsKept", "False", "no class breaks a limit on times or errors in both arms"
    # Held, which otherwise has the reason of the condition behind it
    OLD_SERVERS = "OldServers", "True", "servers are being brought to this spec"
    NOT_HELD = "NotHeld", "False", "nothing holds the classes at their steps"
    # Reconciling and Stalled, which otherwise have the reason of the condition behind them
    NOT_RECONCILING = "Current", "False", "nothing is being changed"
    NOT_STALLED = "NotStalled", "False", "nothing keeps the newest spec from being in effect"
    # KillSwitchActive
    KILLED = "Killed", "True", _KILLED
    KILLED_EVERYWHERE = "KilledEverywhere", "True", _KILLED
    NOT_KILLED = "NotKilled", "False", "no kill switch is on"

    def __new__(cls, value: str, status: ConditionStatus, template: str = "{}") -> Self:
        found = str.__new__(cls, value)
        found._value_, found.status, found.template = value, status, template
        return found

    def __call__(self, *values: object) -> Finding:
        return Finding(self.status, self.value, self.template.format(*values))


AT_REST = frozenset({Reason.DISABLED, Reason.PAIR_SCALED_TO_ZERO})
"""The reasons of a policy that is Ready and governs nothing, because its spec or its pair's says so."""


def accepted(problems: Sequence[Problem], good: GoodVersion | None) -> Finding:
    """Whether the newest spec is valid. `problems` are its own, `good` is the last version without problems."""
    if not problems:
        is_large = good is not None and to_keep(good) is None
        return Reason.ACCEPTED(
            ", but too large to be stored in the status as the last good version" if is_large else ""
        )
    in_use = "no earlier valid version is known" if good is None else f"generation {good.generation} stays in use"
    return Reason.INVALID_SPEC(f"{listed(problems)}. The spec is not used: {in_use}")


def listed(problems: Sequence[Problem | str], separator: str = "; ") -> str:
    """Several messages on one line, the first few of them."""
    more = len(problems) - _MAX_LISTED
    shown = [str(problem) for problem in problems[:_MAX_LISTED]]
    return separator.join([*shown, f"and {more} more"] if more > 0 else shown)
