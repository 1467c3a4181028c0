"""kopf's watch: its settings with the reason for each, and handlers that pass every event to the controller.

There are event handlers (`on.event`) alone: see docs/decisions/kopf.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import kopf
from slipstream_core.kube.credentials import Credentials

from slipstream_operator.cluster.resources import Resource, Scopes
from slipstream_operator.errors import OperatorError
from slipstream_operator.types import KubeObject

Observe = Callable[[str | None, KubeObject], None]

_BEARER = "bearer"
_STOP_S = 5.0


class _NoDiff(kopf.DiffBaseStorage):
    """Turns off kopf's comparison with the last state, which would copy each object on each event."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        raise NotImplementedError("kopf must not write into users' objects")


def settings(resources: Iterable[Resource], *, patience_s: float) -> kopf.OperatorSettings:
    """kopf's settings. The process ends after lists or watches have been refused, or have failed with 5xx, for
    `patience_s`."""
    chosen = kopf.OperatorSettings()
    watching = chosen.watching
    watching.inactivity_timeout = 70.0  # bookmarks arrive every minute: a stream without one is dead; never None
    watching.server_timeout = 240  # streams end before the 5 minutes of many load balancers
    watching.client_timeout = 300  # takes effect only when the two above fail
    watching.connect_timeout = 10  # without it, an address that drops packets takes minutes
    for resource in resources:
        if resource.selector:  # else the watch would deliver all pods and ConfigMaps of the cluster
            watching.label_selectors[resource.group, resource.version, resource.plural] = resource.selector
    chosen.networking.request_timeout = 60.0  # the longest list; the default is 5 minutes
    chosen.networking.connect_timeout = 10.0
    # The pauses are short, so that the watch recovers within seconds after an outage. After the last pause, a refusal
    # (rights or CRDs were removed) or 5xx ends the process, which is better than an operator that misses events. Lost
    # connections do not end it.
    chosen.networking.error_backoffs = _pauses(patience_s)
    chosen.scanning.disabled = True  # needs no rights to list CRDs and namespaces; `discovery` has found the kinds
    chosen.posting.enabled = False  # `status.events` posts them
    # Both save memory: each object has a task until this long after its last event, and lists have thousands of them.
    chosen.queueing.idle_timeout = 0.1
    chosen.queueing.worker_limit = 100
    # Else kopf kills the process this long after its tasks were cancelled. A process that watches again, because the
    # cluster has other kinds, does not end; `command` limits a true exit.
    chosen.process.ultimate_exiting_timeout = None
    chosen.persistence.finalizer = "slipstream.dev/unused"
    chosen.persistence.diffbase_storage = _NoDiff()
    chosen.peering.standalone = True  # peering is not leader election: with equal priority all operators pause
    return chosen


def registry(
    resources: Iterable[Resource],
    *,
    observe: Observe,
    login: Callable[[], Awaitable[Credentials]],
) -> kopf.OperatorRegistry:
    """Handlers of every kind, and the login."""
    handlers = kopf.OperatorRegistry()
    for resource in resources:
        _watch(handlers, resource, observe)

    @kopf.on.login(registry=handlers)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await _connection(await login())

    return handlers


async def watch(
    scopes: Scopes,
    *,
    observe: Observe,
    login: Callable[[], Awaitable[Credentials]],
    patience_s: float,
    heed_signals: Callable[[], None],
) -> None:
    """Pass every event of the kinds in `scopes` to `observe`, until cancelled. `heed_signals` sets the process's own
    signal handlers again, which kopf has replaced.

    Raises:
        Exception: kopf's or the API server's, after which the watch cannot continue.
    """
    tasks: list[asyncio.Task[Any]] = []
    for scope in set(scopes.values()):  # kopf watches all kinds of one operator in the same namespaces
        resources = [resource for resource in scopes if scopes[resource] == scope]
        tasks += await kopf.spawn_tasks(
            registry=registry(resources, observe=observe, login=login),
            settings=settings(resources, patience_s=patience_s),
            standalone=True,
            clusterwide=None in scope,
            namespaces=[namespace for namespace in scope if namespace is not None],
        )
        heed_signals()  # those of kopf would end this watch alone, and nothing once it has ended
    try:
        # Not `kopf.run_tasks`: in the end it cancels every task of the loop, also those of the rest of the operator.
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        raise OperatorError("the watch ended unexpectedly")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_STOP_S)


def quiet() -> None:
    """Suppress kopf's INFO records, which are for debugging kopf."""
    logging.getLogger("kopf").setLevel(max(logging.getLogger().getEffectiveLevel(), logging.WARNING))


def _watch(handlers: kopf.OperatorRegistry, resource: Resource, observe: Observe) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, registry=handlers, id=resource.plural)
    async def pass_on(event: kopf.RawEvent, **_: Any) -> None:
        item: Any = event["object"]
        # Items of a list lack their kind.
        observe(event["type"], {"apiVersion": resource.api_version, "kind": resource.kind.value, **item})


async def _connection(credentials: Credentials) -> kopf.ConnectionInfo:
    """The server and credentials of `credentials`, with a fresh token."""
    config: Any = credentials.configuration
    header = await config.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    token = header[len(_BEARER) + 1 :] if header.lower().startswith(f"{_BEARER} ") else header
    return kopf.ConnectionInfo(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        username=config.username or None,
        password=config.password or None,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
    )


def _pauses(total_s: float) -> list[float]:
    pauses = [0.5, 1.0, 2.0]
    while sum(pauses) < total_s:
        pauses.append(3.0)
    return pauses
