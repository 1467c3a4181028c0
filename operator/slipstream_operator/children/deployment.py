"""The Deployment of a pair's servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.manifest.naming import OPERATOR
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.identity import Owner, child, selector
from slipstream_operator.children.pod import pod_template
from slipstream_operator.types import KubeObject, ServingDefaults

FIELD_MANAGER = OPERATOR

_PULL_S = 900  # a server's image has gigabytes


def deployment(
    pair: ModelPair,
    owner: Owner,
    *,
    defaults: ServingDefaults,
    repository: Mapping[str, str] | None,
    live: KubeObject | None,
) -> dict[str, Any]:
    """The Deployment. `repository` is the data of the pair's ConfigMap, None without one; `live` is the present
    Deployment.

    By default a new server has to be ready before an old one is removed. If no node has room for one more server, a
    change waits, and the condition `Progressing` has the reason.
    """
    serving = pair.spec.serving or Serving()
    spec: dict[str, Any] = {
        "selector": {"matchLabels": selector(owner)},
        "strategy": _strategy(serving),
        "minReadySeconds": 5,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": progress_deadline_s(serving),
        "template": pod_template(pair, owner, defaults=defaults, repository=repository),
    }
    replicas = replicas_to_write(serving, live)
    if replicas is not None:
        spec["replicas"] = replicas
    return child("apps/v1", "Deployment", owner, spec=spec)


def progress_deadline_s(serving: Serving) -> int:
    """The time without progress after which a rollout is stuck."""
    return serving.startup_seconds + _PULL_S


def _strategy(serving: Serving) -> dict[str, Any]:
    update = serving.update
    if update.strategy == "Recreate":
        return {"type": "Recreate"}
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable},
    }


def replicas_to_write(serving: Serving, live: KubeObject | None) -> int | None:
    """The number of replicas to write; None leaves the field to its other owner.

    Server-side apply resets a field that its only owner leaves out, here to one server. If the pair's own number is
    removed, the present number is therefore applied until another client, such as an autoscaler, owns the field. A pair
    at zero gets its first server back if nothing keeps it there any more.
    """
    if serving.replicas is not None:
        return serving.replicas
    if live is None or not _is_only_owner_of_replicas(live):
        return None
    count = live.get("spec", {}).get("replicas")
    if count == 0 and serving.autoscaling is None:
        return 1
    return count if isinstance(count, int) else None


def _is_only_owner_of_replicas(live: KubeObject) -> bool:
    owners = list(_owners_of_replicas(live))
    return bool(owners) and all(owner == (FIELD_MANAGER, "Apply") for owner in owners)


def _owners_of_replicas(live: KubeObject) -> Iterator[tuple[str, str]]:
    """The (manager, operation) of each entry of `managedFields` with the field `replicas`."""
    for entry in live.get("metadata", {}).get("managedFields", []):
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {}):
            yield entry.get("manager", ""), entry.get("operation", "")
