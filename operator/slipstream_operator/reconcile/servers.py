"""The numbers of a pair's servers, and whether they match its spec: only then are their answers evidence for the spec.
Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.status import ConditionType, ModelPairStatus, Replicas

from slipstream_operator.children.all import has_servers
from slipstream_operator.children.container import gpus_of
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.status.conditions import find
from slipstream_operator.types import KubeObject


def replicas_of(pair: ModelPair | None, live: KubeObject | None) -> Replicas:
    """The ready and the desired number of servers of the Deployment."""
    if pair is not None and not has_servers(pair):
        return Replicas()
    if live is None:
        asked = 0 if pair is None else pair.serving.replicas
        return Replicas(desired=1 if asked is None else asked)
    return Replicas(
        ready=count(live, "status", "readyReplicas"),
        desired=count(live, "spec", "replicas"),
        current=count(live, "status", "replicas"),
    )


def with_serving(pair: ModelPair, **changes: Any) -> ModelPair:
    """`pair` with other values of fields of `serving`. A pair without `serving` keeps the GPUs that its engine uses."""
    if pair.spec.serving is None:
        changes = {"gpus": gpus_of(pair), **changes}
    serving = msgspec.structs.replace(pair.serving, **changes)
    return msgspec.structs.replace(pair, spec=msgspec.structs.replace(pair.spec, serving=serving))


def is_complete(live: KubeObject, desired: int) -> bool:
    """Whether the rollout is complete, by the rules of `kubectl rollout status`."""
    seen = count(live, "status", "observedGeneration") >= count(live, "metadata", "generation")
    counts = [count(live, "status", field) for field in ("updatedReplicas", "availableReplicas", "replicas")]
    return seen and counts == [desired] * 3


def deadline_exceeded(live: KubeObject) -> bool:
    """Whether a Deployment's rollout is stuck."""
    conditions: list[dict[str, Any]] = (live.get("status") or {}).get("conditions") or []
    return any(
        condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
        for condition in conditions
    )


def count(live: KubeObject, part: str, field: str) -> int:
    """A number in a Deployment's `part`, 0 where it is missing."""
    value = (live.get(part) or {}).get(field)
    return value if isinstance(value, int) else 0


class Servers(NamedTuple):
    """`current`: as far as is known, all servers have the spec. `counted`: their answers are evidence, which they are
    not while servers are being replaced. If the replacement is stuck, they count again, to guard the running
    servers."""

    current: bool = True
    counted: bool = True


def servers_of(
    pair: KubeObject, status: ModelPairStatus | None, deployment: KubeObject | None, *, template: object = None
) -> Servers:
    """The state of the servers of `pair`, which is the object from the API server. `status` is its status, and
    `deployment` its own Deployment, None if there is none. `template` is the last result of `template_seen`."""
    is_acted_on = status is not None and status.observed_generation >= _generation(pair)
    if deployment is None:
        return Servers(counted=is_acted_on)
    progressing = find(status.conditions, ConditionType.PROGRESSING) if status is not None else None
    reason = progressing.reason if progressing is not None else None
    is_refused = reason == Reason.CHILDREN_REJECTED
    is_stuck = deadline_exceeded(deployment) or reason == Reason.DEADLINE_EXCEEDED
    is_seen = template_seen(deployment) is not None or deployment["spec"]["template"] == template
    has_old = count(deployment, "status", "updatedReplicas") < count(deployment, "status", "replicas")
    return Servers(
        current=not has_old and not is_refused,
        # A spec or a Deployment that its controller has not processed yet may have a new template.
        counted=is_acted_on and is_seen and (not has_old or is_stuck),
    )


def template_seen(deployment: KubeObject) -> object:
    """The template of the pods, if the Deployment's controller has processed it; else None."""
    if count(deployment, "status", "observedGeneration") < _generation(deployment):
        return None
    template: object = deployment["spec"]["template"]
    return template


def _generation(item: KubeObject) -> int:
    metadata: dict[str, Any] = item["metadata"]
    return int(metadata.get("generation") or 0)
