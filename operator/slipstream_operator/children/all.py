"""All children of a pair, in the order of writing: dependencies first."""

from __future__ import annotations

from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.revision import revision_of
from slipstream_core.manifest.sources import EMBEDDED

from slipstream_operator.children.autoscaler import autoscaler
from slipstream_operator.children.identity import TRITON, VLLM, Owner, Software, is_group
from slipstream_operator.children.repository import repository_config_map
from slipstream_operator.children.service import (
    disruption_budget,
    http_route,
    inference_pool,
    network_policy,
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
    revision = revision_of(pair) if canary else ""
    owner = Owner(pair=pair, uid=uid, software=software, defaults=defaults, revision=revision)
    config_map = repository_config_map(owner) if software is TRITON else None
    if owner.is_group:
        workload = leader_worker_set(owner, live)
    else:
        workload = deployment(owner, live, repository=None if config_map is None else config_map["data"])
    return (
        *(() if pair.serving.service_account_name else (service_account(owner),)),
        *(() if config_map is None else (config_map,)),
        service(owner),
        disruption_budget(owner),
        *(() if defaults.server_ingress is None else (network_policy(owner, defaults.server_ingress),)),
        workload,
        *_autoscalers(owner, workload),
        *(() if canary else _inference_pool(owner)),
    )


def lacks_kind(pair: ModelPair, defaults: ServingDefaults) -> bool:
    """Whether the cluster has no kind for servers of several nodes, and `pair` needs it. Nothing is changed then."""
    return is_group(pair) and "LeaderWorkerSet" not in defaults.foreign_kinds


def missing_kinds(pair: ModelPair, defaults: ServingDefaults) -> list[str]:
    """The kinds that `serving.inferencePool` needs, and that the cluster does not have. The servers run without."""
    pool = pair.serving.inference_pool
    if pool is None:
        return []
    needed = ("InferencePool",) if pool.gateway is None else ("InferencePool", "HTTPRoute")
    return [kind for kind in needed if kind not in defaults.foreign_kinds]


def selector_of(pair: ModelPair, defaults: ServingDefaults) -> str:
    """The label selector of the servers of `pair`, one pod for each, as text; empty if it has none of its own."""
    if (software := software_of(pair)) is None:
        return ""
    wanted = Owner(pair=pair, software=software, defaults=defaults).server_labels
    return ",".join(f"{name}={value}" for name, value in wanted.items())


def _autoscalers(owner: Owner, workload: KubeObject) -> tuple[KubeObject, ...]:
    """None while the pair has no servers, because KEDA would start one."""
    serving = owner.pair.serving
    if serving.autoscaling is None or serving.replicas == 0:
        return ()
    return (autoscaler(owner, serving.autoscaling, workload),)


def _inference_pool(owner: Owner) -> tuple[KubeObject, ...]:
    wanted = owner.pair.serving.inference_pool
    if wanted is None or missing_kinds(owner.pair, owner.defaults):
        return ()
    pool = inference_pool(owner, wanted)
    return (pool,) if wanted.gateway is None else (pool, http_route(owner, wanted, wanted.gateway))
