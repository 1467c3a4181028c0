"""All children of a pair, in the order of writing: dependencies first."""

from __future__ import annotations

from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.revision import revision_of
from slipstream_core.manifest.serving import Serving
from slipstream_core.manifest.sources import EMBEDDED

from slipstream_operator.children.autoscaler import autoscaler
from slipstream_operator.children.identity import TRITON, VLLM, Owner, Software
from slipstream_operator.children.inference_pool import http_route, inference_pool
from slipstream_operator.children.repository import repository_config_map
from slipstream_operator.children.service import (
    disruption_budget,
    network_policy,
    server_labels,
    service,
    service_account,
)
from slipstream_operator.children.workload import deployment, leader_worker_set
from slipstream_operator.types import KubeObject, ServingDefaults


def has_servers(pair: ModelPair) -> bool:
    """Whether the operator runs servers for `pair`. It does not if the pair has addresses of external servers."""
    return software_of(pair) is not None


def software_of(pair: ModelPair) -> Software | None:
    """The program of the servers that the operator runs for `pair`; None if it runs none."""
    match pair.spec.engine:
        case SlipstreamEngine(endpoints=()):
            return TRITON
        case VllmEngine(endpoints=(), serving="openai") if not has_packaged_source(pair):
            return VLLM
    return None


def has_packaged_source(pair: ModelPair) -> bool:
    """Whether a source of `pair` is in Slipstream's own package, which images of vLLM lack."""
    sources = (part.source for part in (pair.spec.target, pair.spec.draft) if part is not None)
    return any(source is not None and source.startswith(EMBEDDED) for source in sources)


def children_of(
    pair: ModelPair, *, uid: str, defaults: ServingDefaults, live: KubeObject | None, canary: bool = False
) -> tuple[KubeObject, ...]:
    """The children of `pair`, whose object has the uid `uid`; none if it has no servers of its own.

    `live` is its present Deployment or LeaderWorkerSet, which shows the owner of the number of replicas. `canary`:
    `pair` is a new revision, whose servers run beside those of the serving one.
    """
    software = software_of(pair)
    if software is None:
        return ()
    owner = _owner(pair, software, uid=uid, revision=revision_of(pair) if canary else "")
    config_map = repository_config_map(pair, owner) if software is TRITON else None
    repository = config_map["data"] if config_map is not None else None
    if is_group(pair):
        workload = leader_worker_set(pair, owner, defaults=defaults, live=live)
    else:
        workload = deployment(pair, owner, defaults=defaults, repository=repository, live=live)
    return (
        *_service_accounts(pair, owner),
        *((config_map,) if config_map is not None else ()),
        service(owner, leaders_only=is_group(pair)),
        disruption_budget(owner, api_version=defaults.pdb_api_version),
        *_network_policies(pair, owner, defaults),
        workload,
        *_autoscalers(pair, owner, workload, defaults),
        *(() if canary else _inference_pool(pair, owner, defaults)),
    )


def _service_accounts(pair: ModelPair, owner: Owner) -> tuple[KubeObject, ...]:
    serving = pair.spec.serving or Serving()
    return () if serving.service_account_name else (service_account(owner, serving.service_account_annotations),)


def is_group(pair: ModelPair) -> bool:
    """Whether each server of `pair` is a group of pods, one per node."""
    return pair.spec.serving is not None and pair.spec.serving.nodes > 1


def lacks_kind(pair: ModelPair, defaults: ServingDefaults) -> bool:
    """Whether the cluster has no kind for servers of several nodes, and `pair` needs it. Nothing is changed then."""
    return is_group(pair) and "LeaderWorkerSet" not in defaults.foreign_kinds


def missing_kinds(pair: ModelPair, defaults: ServingDefaults) -> list[str]:
    """The kinds that `serving.inferencePool` needs, and that the cluster does not have. The servers run without."""
    pool = pair.spec.serving.inference_pool if pair.spec.serving is not None else None
    if pool is None:
        return []
    needed = ("InferencePool",) if pool.gateway is None else ("InferencePool", "HTTPRoute")
    return [kind for kind in needed if kind not in defaults.foreign_kinds]


def selector_of(pair: ModelPair) -> str:
    """The label selector of the servers of `pair`, one pod for each, as text; empty if it has none of its own."""
    if (software := software_of(pair)) is None:
        return ""
    wanted = server_labels(_owner(pair, software, uid=""), leaders_only=is_group(pair))
    return ",".join(f"{name}={value}" for name, value in wanted.items())


def _owner(pair: ModelPair, software: Software, *, uid: str, revision: str = "") -> Owner:
    return Owner(
        name=pair.metadata.name,
        namespace=pair.metadata.namespace or "default",
        uid=uid,
        software=software,
        revision=revision,
    )


def _autoscalers(
    pair: ModelPair, owner: Owner, workload: KubeObject, defaults: ServingDefaults
) -> tuple[KubeObject, ...]:
    """None while the pair has no servers, because KEDA would start one."""
    serving = pair.spec.serving
    if serving is None or serving.autoscaling is None or serving.replicas == 0:
        return ()
    return (autoscaler(pair, owner, serving.autoscaling, workload=workload, defaults=defaults),)


def _inference_pool(pair: ModelPair, owner: Owner, defaults: ServingDefaults) -> tuple[KubeObject, ...]:
    wanted = pair.spec.serving.inference_pool if pair.spec.serving is not None else None
    if wanted is None or missing_kinds(pair, defaults):
        return ()
    pool = inference_pool(owner, wanted, leaders_only=is_group(pair))
    return (pool,) if wanted.gateway is None else (pool, http_route(pair, owner, wanted, wanted.gateway))


def _network_policies(pair: ModelPair, owner: Owner, defaults: ServingDefaults) -> tuple[KubeObject, ...]:
    if defaults.server_ingress is None:
        return ()
    return (network_policy(owner, ingress=defaults.server_ingress, between_pods=is_group(pair)),)
