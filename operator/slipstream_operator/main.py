"""One run of the operator: all objects are built here, handed in, and closed together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.credentials import DEFAULT_NAMESPACE, load_credentials
from slipstream_core.kube.environment import default_kubeconfig, own_address, own_namespace
from slipstream_core.tasks import cancel

from slipstream_operator.cluster.discovery import find_resources, until_changed
from slipstream_operator.cluster.leadership import Leadership, identity
from slipstream_operator.cluster.resources import FIELD_MANAGER, FOREIGN, Kind, ObjectKey, Resource
from slipstream_operator.handlers import kopf_watch
from slipstream_operator.handlers.controller import Controller
from slipstream_operator.handlers.health import STANDBY, Health, serve
from slipstream_operator.handlers.metrics import Metrics
from slipstream_operator.rollout.evidence import CollectedEvidence
from slipstream_operator.settings import OperatorSettings
from slipstream_operator.types import ServingDefaults

Result = TypeVar("Result")


async def operate(
    settings: OperatorSettings,
    *,
    stop: asyncio.Event,
    heed_signals: Callable[[], None],
    on_write: Callable[[str, str], None] | None = None,
) -> bool:
    """Run until `stop` is set, by the signal handlers that `heed_signals` sets. `on_write` is called after each
    successful write with its HTTP method and path. True: the cluster has other kinds since, and the caller should run
    it again.

    Raises:
        CommandError: no cluster is configured.
        OperatorError, kopf's errors: another try would not help.
    """
    settings = settings.at(own_namespace() or DEFAULT_NAMESPACE)
    metrics, health = Metrics(), Health()
    client = KubeClient(
        settings.kubeconfig or default_kubeconfig(),
        context=settings.context,
        name=FIELD_MANAGER,
        trust_env=False,  # else each call reads ~/.netrc; a kubeconfig's proxy-url is used all the same
        on_write=_counting(metrics, on_write),
    )
    async with (
        await client.connect(),
        serve(health, metrics, host=settings.host, port=settings.metrics_port),
        serve(health, None, host=settings.host, port=settings.liveness_port),
    ):
        leadership = _leadership(settings, client)
        resources = await _until(stop, _get_ready(client, health, leadership))
        if resources is None:
            return False
        try:
            controller, evidence = _build(settings, client, resources, metrics)
            health.controller = controller
            watch = kopf_watch.watch(
                controller.scopes,
                observe=controller.observe,
                login=lambda: load_credentials(settings.kubeconfig or default_kubeconfig(), context=settings.context),
                patience_s=settings.patience_s,
                heed_signals=heed_signals,
            )
            parts = [controller.run(), watch, _gather(evidence)]
            if leadership is not None:
                parts.append(leadership.hold())
            return bool(await _until(stop, *parts, until_changed(client, resources, every_s=settings.kinds_every_s)))
        finally:
            if leadership is not None:
                await leadership.release()


async def _get_ready(client: KubeClient, health: Health, leadership: Leadership | None) -> dict[Kind, Resource]:
    health.phase = "waiting for the API server and the CRDs"
    resources = await find_resources(client)
    if leadership is not None:
        health.phase = STANDBY
        await leadership.acquire()
    health.phase = "working"
    return resources


def _build(
    settings: OperatorSettings, client: KubeClient, resources: dict[Kind, Resource], metrics: Metrics
) -> tuple[Controller, CollectedEvidence]:
    fed: set[ObjectKey] = set()
    evidence = CollectedEvidence(settings.redis_url, changed=fed.add)
    controller = Controller(
        client=client,
        resources=resources,
        settings=settings,
        defaults=ServingDefaults(
            image=settings.image,
            vllm_image=settings.vllm_image,
            pdb_api_version=resources[Kind.POD_DISRUPTION_BUDGET].api_version,
            server_ingress=settings.server_ingress,
            foreign_kinds=frozenset(resource.kind.value for resource in FOREIGN if resource.kind in resources),
            is_ipv6=are_pods_ipv6(own_address(), client.url),
            hpa_api_version=resources[Kind.HORIZONTAL_POD_AUTOSCALER].api_version,
            prometheus=settings.prometheus_url if Kind.SCALED_OBJECT in resources else None,
            allows_privileges=not settings.forbid_pod_privileges,
        ),
        evidence=evidence,
        fed=fed,
        metrics=metrics,
        clock=lambda: datetime.now(UTC),
        clock_s=time.monotonic,
    )
    return controller, evidence


def are_pods_ipv6(pod_address: str | None, api_url: str) -> bool:
    """Whether the first address of the cluster's pods is of IPv6: that of the operator's own pod, if known. Else the
    API server's address decides: in a pod it is that of a Service, and pods have the same first family."""
    return ":" in (pod_address or urlsplit(api_url).hostname or "")


async def _gather(evidence: CollectedEvidence) -> None:
    """Read outcomes until cancelled."""
    try:
        await evidence.run()
    finally:
        await evidence.aclose()


async def _until(stop: asyncio.Event, *parts: Coroutine[Any, Any, Result]) -> Result | None:
    """Run `parts` together. Returns the result of the first that ends, None when `stop` is set; cancels the others.

    Raises:
        Exception: the first one of any part.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        ended = next((task for task in tasks if task.done()), None)
        return None if ended is None else ended.result()
    finally:
        await cancel(*tasks, stopped)


def _leadership(settings: OperatorSettings, client: KubeClient) -> Leadership | None:
    if not settings.leader_election:
        return None
    return Leadership(
        client,
        namespace=settings.lease_namespace or "",
        name=settings.lease,
        holder=identity(),
        clock_s=time.monotonic,
    )


def _counting(metrics: Metrics, on_write: Callable[[str, str], None] | None) -> Callable[[str, str], None]:
    def wrote(method: str, path: str) -> None:
        metrics.wrote(method, path)
        if on_write is not None:
            on_write(method, path)

    return wrote
