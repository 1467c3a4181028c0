"""The state of pods: the most informative problem, and the report of the preflight container."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from slipstream_core.vllm_log import informative_line

from slipstream_operator.children.init_containers import PREFLIGHT_CONTAINER, WEIGHTS_CONTAINER
from slipstream_operator.children.repository import WEIGHTS_ANNOTATION
from slipstream_operator.types import KubeObject

MAX_QUOTED_CHARS = 600

_PULL_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "(?P<name>[^"]+)" not found', re.IGNORECASE)
# Triton's log lines with the reason why a model does not load, or why Triton ends.
_TELLING = (
    re.compile(r"TritonModelException: (?P<why>.+?)(?:\\n|\n|$)"),
    re.compile(r"failed to load '[^']+' version \d+: (?P<why>.+)"),
    re.compile(r"^error: (?P<why>.+)", re.MULTILINE),
    re.compile(r"^Error: (?P<why>.+)", re.MULTILINE),  # of downloads
)
# A source at the digest of its content, from the container that downloads it.
_CONTENT = re.compile(r"^s3://\S+@[0-9a-f]{16}$", re.MULTILINE)

# Messages of the programs that download, `hf` and `s3_download.py`, and what they mean.
_DOWNLOAD_MESSAGES = (
    (re.compile(r"Access denied|requires approval|Invalid user token|[Uu]nauthorized"), "WeightsDenied"),
    (
        re.compile(r"(Revision|Bucket|Prefix) not found|^Error: Model '.*' not found", re.MULTILINE),
        "WeightsNotFound",
    ),
    (re.compile(r"No space left on device|Not enough free disk space|Disk quota exceeded"), "DiskFull"),
    (re.compile(r"Local entry not found|Connection|Name or service not known|timed out|Network"), "WeightsUnreachable"),
)
_TOKEN_HINT = "; a private model needs HF_TOKEN in spec.serving.env"  # nosec B105 # a message


class PodReason(StrEnum):
    """The reasons why a pod does not serve, the most informative first."""

    CLAIM_NOT_FOUND = "ClaimNotFound"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    WEIGHTS_DENIED = "WeightsDenied"
    WEIGHTS_NOT_FOUND = "WeightsNotFound"
    WEIGHTS_UNREACHABLE = "WeightsUnreachable"
    DISK_FULL = "DiskFull"
    WEIGHTS_FAILED = "WeightsFailed"
    TOKENIZER_MISMATCH = "TokenizerMismatch"
    PREFLIGHT_FAILED = "PreflightFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOP = "CrashLoop"
    CONTAINER_FAILED = "ContainerFailed"
    FAILED_CREATE = "FailedCreate"
    UNSCHEDULABLE = "Unschedulable"
    EVICTED = "Evicted"
    DOWNLOADING_WEIGHTS = "DownloadingWeights"


class PodProblem(msgspec.Struct, frozen=True, kw_only=True):
    """The problem of one pod, whose name begins `message`, or of pods that were never created."""

    reason: PodReason
    message: str


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of `slipstream_engine.preflight`, or `slipstream_vllm.preflight`; None: they could not be compared."""

    tokenizer_compatible: bool | None
    message: str


def worst_problem(pods: Sequence[KubeObject], deployment: KubeObject | None) -> PodProblem | None:
    """The most informative problem of all pods that are not being deleted, and of those that `deployment` could not
    create; None where there is none."""
    staying = (pod for pod in pods if "deletionTimestamp" not in _metadata(pod))
    problems = [problem for pod in sorted(staying, key=_name) for problem in _problems(pod)]
    problems += _refusals(deployment or {})
    order = list(PodReason)
    return min(problems, key=lambda problem: order.index(problem.reason), default=None)


def _refusals(deployment: KubeObject) -> Iterator[PodProblem]:
    """The API server's words about pods that it refuses: by a quota, a LimitRange, PodSecurity, an unknown
    PriorityClass or ServiceAccount, or an admission webhook."""
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        found = condition.get("type"), condition.get("status"), condition.get("reason")
        if found == ("ReplicaFailure", "True", "FailedCreate"):
            message = f"pods are refused: {condition.get('message') or 'no message'}"
            yield PodProblem(reason=PodReason.FAILED_CREATE, message=_short(message))


def restarts(pods: Sequence[KubeObject]) -> int:
    """The most restarts of any container of these pods."""
    fields = ("initContainerStatuses", "containerStatuses")
    counts = (status.get("restartCount") or 0 for pod in pods for field in fields for status in _statuses(pod, field))
    return max(counts, default=0)


def preflight_report(pods: Sequence[KubeObject], weights: str) -> PreflightReport | None:
    """The result of the tokenizer comparison for the hash `weights`. A difference takes precedence over agreement. None
    if no pod has compared the tokenizers."""
    ends = (end for pod in sorted(pods, key=_name) for end in _ends(pod, PREFLIGHT_CONTAINER, weights))
    reports = [report for end in ends if (report := _report(end)) is not None]
    return next((report for report in reports if report.tokenizer_compatible is False), next(iter(reports), None))


def _report(ended: dict[str, Any]) -> PreflightReport | None:
    try:
        return msgspec.json.decode(ended.get("message") or "", type=PreflightReport)
    except msgspec.DecodeError:  # an error, an image of another version, or another container
        return None


def contents(pods: Sequence[KubeObject], weights: str) -> list[str]:
    """The sources of the hash `weights` that have no revision of their own, each at the digest of its content. Several
    digests of one source: pods have different content."""
    return sorted({content for pod in pods for content in _contents(pod, weights)})


def _contents(pod: KubeObject, weights: str) -> Iterator[str]:
    for ended in _ends(pod, WEIGHTS_CONTAINER, weights):
        if ended.get("exitCode") == 0:
            yield from _CONTENT.findall(ended.get("message") or "")


def _ends(pod: KubeObject, container: str, weights: str) -> Iterator[dict[str, Any]]:
    """The last end of an init container, in a pod of the hash `weights`."""
    if (_metadata(pod).get("annotations") or {}).get(WEIGHTS_ANNOTATION) != weights:
        return
    for status in _statuses(pod, "initContainerStatuses"):
        if status.get("name") == container and (ended := _terminated(status)) is not None:
            yield ended


def _problems(pod: KubeObject) -> Iterator[PodProblem]:
    phase_of: dict[str, Any] = pod.get("status") or {}
    if phase_of.get("phase") == "Failed" and phase_of.get("reason"):
        yield _problem(pod, PodReason.EVICTED, f"{phase_of['reason']}: {phase_of.get('message') or 'no message'}")
    for condition in phase_of.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield _unscheduled(pod, condition.get("message") or condition.get("reason") or "no message")
    for status in _statuses(pod, "initContainerStatuses"):
        if status.get("name") == WEIGHTS_CONTAINER:
            yield from _download_problems(pod, status)
        else:
            yield from _preflight_problems(pod, status)
    for status in _statuses(pod, "containerStatuses"):
        yield from _container_problems(pod, status, crashed=PodReason.CRASH_LOOP)


def _download_problems(pod: KubeObject, status: dict[str, Any]) -> Iterator[PodProblem]:
    """The state of the container that downloads weights."""
    log = (_terminated(status) or {}).get("message") or ""
    reason = next(
        (PodReason(name) for pattern, name in _DOWNLOAD_MESSAGES if pattern.search(log)), PodReason.WEIGHTS_FAILED
    )
    for problem in _container_problems(pod, status, crashed=reason):
        may_be_private = problem.reason is PodReason.WEIGHTS_NOT_FOUND and "Error: Model" in log
        yield msgspec.structs.replace(problem, message=problem.message + (_TOKEN_HINT if may_be_private else ""))
    if (running := (status.get("state") or {}).get("running")) is not None:
        since = running.get("startedAt") or "an unknown time"
        yield _problem(pod, PodReason.DOWNLOADING_WEIGHTS, f"downloads its weights since {since}")


def _preflight_problems(pod: KubeObject, status: dict[str, Any]) -> Iterator[PodProblem]:
    """The state of the container that compares tokenizers. Its report of a difference ends the start of a server."""
    report = _report(_terminated(status) or {})
    for problem in _container_problems(pod, status, crashed=PodReason.PREFLIGHT_FAILED):
        if problem.reason is PodReason.PREFLIGHT_FAILED and report is not None:
            yield _problem(pod, PodReason.TOKENIZER_MISMATCH, report.message)
        else:
            yield problem


def _unscheduled(pod: KubeObject, message: str) -> PodProblem:
    if missing := _MISSING_CLAIM.search(message):
        return _problem(pod, PodReason.CLAIM_NOT_FOUND, f"there is no PersistentVolumeClaim {missing['name']!r}")
    return _problem(pod, PodReason.UNSCHEDULABLE, f"no node accepts it: {message}")


def _container_problems(pod: KubeObject, status: dict[str, Any], *, crashed: PodReason) -> Iterator[PodProblem]:
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or "no message"
    if reason in _PULL_REASONS:
        what = f"its image {status.get('image') or ''} cannot be pulled: {reason}: {message}"
        yield _problem(pod, PodReason.IMAGE_PULL_FAILED, what)
    elif reason in _CONFIG_REASONS:
        yield _problem(pod, PodReason.CONTAINER_FAILED, f"{reason}: {message}")
    elif not status.get("ready") and (ended := _terminated(status)) and ended.get("exitCode") != 0:
        yield _crash(pod, status, ended, crashed)


def _crash(pod: KubeObject, status: dict[str, Any], ended: dict[str, Any], crashed: PodReason) -> PodProblem:
    code, restarts = ended.get("exitCode"), status.get("restartCount") or 0
    what = f"container {status.get('name')} exited with code {code} ({restarts} restarts)"
    if ended.get("reason") == "OOMKilled":
        return _problem(pod, PodReason.OUT_OF_MEMORY, f"{what}: it needs more memory than its limit")
    return _problem(pod, crashed, f"{what}: {telling(ended.get('message') or '') or 'no message'}")


def telling(log: str) -> str:
    """The most informative line at the end of a log of Triton or vLLM."""
    for pattern in _TELLING:
        if found := pattern.search(log):
            return found["why"].partition("\\n")[0].strip().rstrip(";").strip('"')
    return informative_line(log.rstrip()).strip()


def _problem(pod: KubeObject, reason: PodReason, message: str) -> PodProblem:
    return PodProblem(reason=reason, message=f"pod {_name(pod)}: {_short(message)}")


def _short(message: str) -> str:
    return message if len(message) <= MAX_QUOTED_CHARS else f"{message[: MAX_QUOTED_CHARS - 1]}…"


def _terminated(status: dict[str, Any]) -> dict[str, Any] | None:
    """The last termination of the container: its present state, or the state before its restart."""
    for field in ("state", "lastState"):
        ended: dict[str, Any] | None = (status.get(field) or {}).get("terminated")
        if ended is not None:
            return ended
    return None


def _statuses(pod: KubeObject, field: str) -> Iterable[dict[str, Any]]:
    statuses: Iterable[dict[str, Any]] = (pod.get("status") or {}).get(field) or []
    return statuses


def _metadata(pod: KubeObject) -> dict[str, Any]:
    metadata: dict[str, Any] = pod.get("metadata") or {}
    return metadata


def _name(pod: KubeObject) -> str:
    return str(_metadata(pod).get("name") or "")
