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
from slipstream_core.kube.environment import default_kubeconfig, own_namespace
from slipstream_core.manifest.naming import label_value

from slipstream_operator.cluster.discovery import find_resources
from slipstream_operator.cluster.leadership import Leadership, identity
from slipstream_operator.cluster.resources import FIELD_MANAGER, FOREIGN, Kind, ObjectKey, Resource, watched
from slipstream_operator.handlers import kopf_watch
from slipstream_operator.handlers.controller import Controller, ControllerSettings, background
from slipstream_operator.handlers.health import STANDBY, Health, serve
from slipstream_operator.handlers.metrics import Metrics
from slipstream_operator.handlers.pairs import PairDecision
from slipstream_operator.handlers.policies import PolicyDecision
from slipstream_operator.rollout.evidence import CollectedEvidence, NoEvidence, RedisEvidence
from slipstream_operator.settings import OperatorSettings
from slipstream_operator.types import ServingDefaults

Result = TypeVar("Result")


async def operate(
    settings: OperatorSettings,
    *,
    decide_pair: PairDecision,
    decide_policy: PolicyDecision,
    stop: asyncio.Event,
    on_write: Callable[[str, str], None] | None = None,
) -> None:
    """Run until `stop` is set. `on_write` is called after each successful write with its HTTP method and path.

    Raises:
        CommandError: no cluster is configured.
        OperatorError, kopf's errors: another try would not help.
    """
    clock_s, metrics = time.monotonic, Metrics()
    health = Health(clock_s=clock_s)
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
        background(health.beat()),
    ):
        leadership = _leadership(settings, client, clock_s)
        # This server answers the liveness probe until kopf does, at the same port.
        async with serve(health, metrics, host=settings.host, port=settings.liveness_port):
            resources = await _until(stop, _get_ready(client, health, leadership))
        if resources is None:
            return
        try:
            controller, evidence = _build(settings, client, resources, metrics, decide_pair, decide_policy)
            health.controller = controller
            watch = _watch(settings, resources, controller, health)
            parts = [controller.run(), watch.run(), _gather(evidence)]
            await _until(stop, *parts, *([] if leadership is None else [leadership.hold()]))
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
    settings: OperatorSettings,
    client: KubeClient,
    resources: dict[Kind, Resource],
    metrics: Metrics,
    decide_pair: PairDecision,
    decide_policy: PolicyDecision,
) -> tuple[Controller, CollectedEvidence]:
    fed: set[ObjectKey] = set()
    source = NoEvidence() if settings.redis_url is None else RedisEvidence(settings.redis_url)
    evidence = CollectedEvidence(source, changed=fed.add)
    budgets = resources[Kind.POD_DISRUPTION_BUDGET].api_version
    controller = Controller(
        client=client,
        resources=resources,
        settings=ControllerSettings(
            release=label_value(settings.release or f"{_own_namespace()}.slipstream"),
            namespaces=settings.namespaces,
            grants=settings.grants,
            report_namespace=settings.report_namespace or _own_namespace(),
            workers=settings.workers,
            resync_s=settings.resync_s,
            defaults=ServingDefaults(
                image=settings.image,
                vllm_image=settings.vllm_image,
                pdb_api_version=budgets,
                server_ingress=settings.server_ingress,
                foreign_kinds=frozenset(resource.kind.value for resource in FOREIGN if resource.kind in resources),
                is_ipv6=has_ipv6_address(client.url),
                hpa_api_version=resources[Kind.HORIZONTAL_POD_AUTOSCALER].api_version,
                prometheus=settings.prometheus_url if Kind.SCALED_OBJECT in resources else None,
            ),
        ),
        decide_pair=decide_pair,
        decide_policy=decide_policy,
        evidence=evidence,
        fed=fed,
        metrics=metrics,
        clock=lambda: datetime.now(UTC),
        clock_s=time.monotonic,
    )
    return controller, evidence


def has_ipv6_address(url: str) -> bool:
    """Whether `url` has an IPv6 address for its host. In a pod the API server's is that of a Service, whose family is
    the first one of the cluster's Services."""
    return ":" in (urlsplit(url).hostname or "")


def _watch(
    settings: OperatorSettings, resources: dict[Kind, Resource], controller: Controller, health: Health
) -> kopf_watch.KopfWatch:
    return kopf_watch.KopfWatch(
        watched(resources).values(),
        namespaces=settings.namespaces,
        observe=controller.observe,
        login=lambda: load_credentials(settings.kubeconfig or default_kubeconfig(), context=settings.context),
        health=health,
        liveness_endpoint=f"http://{settings.host}:{settings.liveness_port}/healthz",
        patience_s=settings.patience_s,
    )


def _own_namespace() -> str:
    return own_namespace() or DEFAULT_NAMESPACE


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
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)


def _leadership(settings: OperatorSettings, client: KubeClient, clock_s: Callable[[], float]) -> Leadership | None:
    if not settings.leader_election:
        return None
    namespace = settings.lease_namespace or _own_namespace()
    return Leadership(client, namespace=namespace, holder=identity(), clock_s=clock_s)


def _counting(metrics: Metrics, on_write: Callable[[str, str], None] | None) -> Callable[[str, str], None]:
    def wrote(method: str, path: str) -> None:
        metrics.wrote(method, path)
        if on_write is not None:
            on_write(method, path)

    return wrote
