"""One run of the operator: everything is built here and handed in, and ends together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from slipstream_core.manifest.naming import label_value

from slipstream_operator import watches
from slipstream_operator.cluster.api import KubeApi
from slipstream_operator.cluster.connection import connect, own_namespace
from slipstream_operator.cluster.discovery import find_resources
from slipstream_operator.cluster.resources import Kind, ObjectKey, Resource, watched
from slipstream_operator.controller import Controller, ControllerSettings
from slipstream_operator.evidence import NoEvidence, PolicyEvidence, RedisEvidence
from slipstream_operator.health import STANDBY, Health, serve
from slipstream_operator.leadership import Leadership, identity
from slipstream_operator.metrics import Metrics
from slipstream_operator.pairs import PairDecision
from slipstream_operator.plan import ServingDefaults
from slipstream_operator.policies import PolicyDecision
from slipstream_operator.settings import OperatorSettings

Result = TypeVar("Result")


async def operate(
    settings: OperatorSettings,
    *,
    decide_pair: PairDecision,
    decide_policy: PolicyDecision,
    stop: asyncio.Event,
    on_write: Callable[[str, str], None] | None = None,
) -> None:
    """Run until `stop` is set. `on_write` hears of every write that the API server took: HTTP method and path.

    Raises:
        CommandError: there is no cluster to be found.
        OperatorError, kopf's errors: what cannot be put right by trying again.
    """
    clock_s, metrics = time.monotonic, Metrics()
    health = Health(clock_s=clock_s)
    configuration = await connect(settings.kubeconfig, context=settings.context)
    heard = _hearing(metrics, on_write)
    async with (
        KubeApi(configuration, on_write=heard) as api,
        serve(health, metrics, host=settings.host, port=settings.metrics_port),
        _background(health.beat()),
    ):
        leadership = _leadership(settings, api, clock_s)
        # Until kopf answers the liveness probe, at the same place.
        async with serve(health, metrics, host=settings.host, port=settings.liveness_port):
            resources = await _until(stop, _get_ready(api, health, leadership))
        if resources is None:
            return
        try:
            controller, evidence = _build(settings, api, resources, metrics, decide_pair, decide_policy)
            health.controller = controller
            watch = _watch(settings, resources, controller, health)
            parts = [controller.run(), watch.run(), _gather(evidence)]
            await _until(stop, *parts, *([] if leadership is None else [leadership.hold()]))
        finally:
            if leadership is not None:
                await leadership.release()


async def _get_ready(api: KubeApi, health: Health, leadership: Leadership | None) -> dict[Kind, Resource]:
    health.phase = "waiting for the API server and its definitions"
    resources = await find_resources(api)
    if leadership is not None:
        health.phase = STANDBY
        await leadership.acquire()
    health.phase = "working"
    return resources


def _build(
    settings: OperatorSettings,
    api: KubeApi,
    resources: dict[Kind, Resource],
    metrics: Metrics,
    decide_pair: PairDecision,
    decide_policy: PolicyDecision,
) -> tuple[Controller, PolicyEvidence]:
    fed: set[ObjectKey] = set()
    source = NoEvidence() if settings.redis_url is None else RedisEvidence(settings.redis_url)
    evidence = PolicyEvidence(source, changed=fed.add)
    budgets = resources[Kind.POD_DISRUPTION_BUDGET].api_version
    controller = Controller(
        api=api,
        resources=resources,
        settings=ControllerSettings(
            release=label_value(settings.release or f"{own_namespace()}.slipstream"),
            namespaces=settings.namespaces,
            grants=settings.grants,
            report_namespace=settings.report_namespace or own_namespace(),
            workers=settings.workers,
            resync_s=settings.resync_s,
            defaults=ServingDefaults(
                image=settings.image, pdb_api_version=budgets, server_ingress=settings.server_ingress
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


def _watch(
    settings: OperatorSettings, resources: dict[Kind, Resource], controller: Controller, health: Health
) -> watches.Watch:
    return watches.Watch(
        watched(resources).values(),
        namespaces=settings.namespaces,
        observe=controller.observe,
        login=lambda: connect(settings.kubeconfig, context=settings.context),
        health=health,
        liveness_endpoint=f"http://{settings.host}:{settings.liveness_port}/healthz",
        patience_s=settings.patience_s,
    )


async def _gather(evidence: PolicyEvidence) -> None:
    """Read outcomes until cancelled."""
    try:
        await evidence.run()
    finally:
        await evidence.aclose()


async def _until(stop: asyncio.Event, *parts: Coroutine[Any, Any, Result]) -> Result | None:
    """Run `parts` together: the result of the first that ends, or None when `stop` is set; the others are cancelled.

    Raises:
        Exception: the first that any of them raises.
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


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _leadership(settings: OperatorSettings, api: KubeApi, clock_s: Callable[[], float]) -> Leadership | None:
    if not settings.leader_election:
        return None
    namespace = settings.lease_namespace or own_namespace()
    return Leadership(api, namespace=namespace, holder=identity(), clock_s=clock_s)


def _hearing(metrics: Metrics, on_write: Callable[[str, str], None] | None) -> Callable[[str, str], None]:
    def wrote(method: str, path: str) -> None:
        metrics.wrote(method, path)
        if on_write is not None:
            on_write(method, path)

    return wrote
