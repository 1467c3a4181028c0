"""The autoscaler of a pair's servers: a ScaledObject of KEDA where there is one, else a HorizontalPodAutoscaler.

Neither goes below one server: the operator itself removes the last one and starts the first
(`reconcile.scale_to_zero`).
"""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.manifest.autoscaling import Autoscaling
from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine

from slipstream_operator.children.identity import Owner, child
from slipstream_operator.types import KubeObject

_CACHE_USAGE = 0.8
# Servers that are busy with no request waiting would be removed at once, so they are removed one by one.
_BEHAVIOR = {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}}


class _Metric(NamedTuple):
    """A gauge of each server, `name` in words. `target` is its mean over the servers above which servers are added.
    `series` selects it in Prometheus; `pods_metric` is its name in Kubernetes' custom metrics, which have no colons."""

    name: str
    series: str
    pods_metric: str
    target: float
    counts_requests: bool = True


def autoscaler(owner: Owner, autoscaling: Autoscaling, workload: KubeObject) -> KubeObject:
    """The autoscaler of `workload`, the object that runs the servers."""
    metrics, defaults = _metrics(owner, autoscaling), owner.defaults
    target = {name: workload[name] for name in ("apiVersion", "kind")} | {"name": workload["metadata"]["name"]}
    if defaults.prometheus is not None:
        return _scaled_object(owner, autoscaling, metrics, target=target, prometheus=defaults.prometheus)
    spec = {
        "scaleTargetRef": target,
        "minReplicas": max(autoscaling.min_replicas, 1),
        "maxReplicas": autoscaling.max_replicas,
        "metrics": [_pods_metric(metric) for metric in metrics],
        "behavior": _BEHAVIOR,
    }
    return child(defaults.hpa_api_version, "HorizontalPodAutoscaler", owner, spec=spec)


def _metrics(owner: Owner, autoscaling: Autoscaling) -> list[_Metric]:
    """Waiting requests and cache use of vLLM. Slipstream's engine counts its running requests with the waiting ones,
    up to `maxConcurrency` of which run."""
    pair, namespace = owner.pair, _text(owner.namespace)
    match pair.spec.engine:
        case VllmEngine(model=model):
            labels = f"{{namespace={namespace},model_name={_text(model or pair.spec.model)}}}"
            usage = autoscaling.kv_cache_usage or _CACHE_USAGE
            return [
                _Metric(
                    "waiting-requests",
                    f"vllm:num_requests_waiting{labels}",
                    "vllm_num_requests_waiting",
                    autoscaling.waiting_requests,
                ),
                _Metric(
                    "kv-cache-usage",
                    f"vllm:kv_cache_usage_perc{labels}",
                    "vllm_kv_cache_usage_perc",
                    usage,
                    counts_requests=False,
                ),
            ]
        case SlipstreamEngine(max_concurrency=running, triton_model=model):
            labels = f"{{namespace={namespace},model={_text(model or owner.name)}}}"
            return [
                _Metric(
                    "requests",
                    f"slipstream_engine_requests{labels}",
                    "slipstream_engine_requests",
                    running + autoscaling.waiting_requests,
                )
            ]
    raise TypeError(f"ModelPair/{owner.name} has no servers of its own")


def _pods_metric(metric: _Metric) -> KubeObject:
    """A metric of autoscaling/v2. The adapter of the custom metrics API serves it."""
    target = {"type": "AverageValue", "averageValue": _quantity(metric.target)}
    return {"type": "Pods", "pods": {"metric": {"name": metric.pods_metric}, "target": target}}


def _scaled_object(
    owner: Owner, autoscaling: Autoscaling, metrics: list[_Metric], *, target: KubeObject, prometheus: str
) -> KubeObject:
    """https://keda.sh/docs/latest/reference/scaledobject-spec/"""
    spec = {
        "scaleTargetRef": target,
        "minReplicaCount": max(autoscaling.min_replicas, 1),
        "maxReplicaCount": autoscaling.max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _BEHAVIOR}},
        "triggers": [
            {
                "type": "prometheus",
                "name": metric.name,
                "metricType": "AverageValue",
                "metadata": {
                    "serverAddress": prometheus,
                    "query": _query(metric, owner),
                    "threshold": f"{metric.target:g}",
                    "ignoreNullValues": "false",  # missing figures must not remove servers
                },
            }
            for metric in metrics
        ],
    }
    found = child("keda.sh/v1alpha1", "ScaledObject", owner, spec=spec)
    # KEDA refuses it while our HorizontalPodAutoscaler exists, which is deleted after this write.
    found["metadata"]["annotations"] = {"validations.keda.sh/hpa-ownership": "false"}
    return found


def _query(metric: _Metric, owner: Owner) -> str:
    """The sum over the servers. Requests that wait in gateways count as well."""
    servers = f"sum({metric.series})"
    if not metric.counts_requests:
        return servers
    pair = _text(f"{owner.namespace}/{owner.name}")
    return f"{servers} + (sum(slipstream_admission_queued{{pair={pair}}}) or vector(0))"


def _quantity(value: float) -> str:
    """`value` as a quantity, in thousandths where it is no whole number."""
    return f"{value:g}" if value == int(value) else f"{round(value * 1000)}m"


def _text(value: str) -> str:
    """`value` as a string of PromQL."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
