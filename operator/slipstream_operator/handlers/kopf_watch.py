"""kopf's watch: its settings with the reason for each, and handlers that pass every event to the controller.

There are event handlers (`on.event`) alone: see docs/decisions/kopf.md.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import kopf
from slipstream_core.kube.credentials import Credentials

from slipstream_operator.cluster.resources import Resource
from slipstream_operator.errors import OperatorError
from slipstream_operator.handlers.health import Health
from slipstream_operator.types import KubeObject

Observe = Callable[[str | None, KubeObject], None]

_BEARER = "bearer"
_STOP_S = 8.0


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
    chosen.process.ultimate_exiting_timeout = 25.0  # a hung exit ends before the 30 s after which Kubernetes kills
    chosen.persistence.finalizer = "slipstream.dev/unused"
    chosen.persistence.diffbase_storage = _NoDiff()
    chosen.peering.standalone = True  # peering is not leader election: with equal priority all operators pause
    return chosen


def registry(
    resources: Iterable[Resource],
    *,
    observe: Observe,
    login: Callable[[], Awaitable[Credentials]],
    health: Health,
) -> kopf.OperatorRegistry:
    """Handlers of every kind, the login, and the liveness probe."""
    handlers = kopf.OperatorRegistry()
    for resource in resources:
        _watch(handlers, resource, observe)

    @kopf.on.login(registry=handlers)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await _connection(await login())

    @kopf.on.probe(registry=handlers, id="progress")
    async def progress(**_: Any) -> str:
        if problems := health.problems():
            # With any other exception kopf would retry the probe, and the request would hang.
            raise kopf.PermanentError("; ".join(problems))
        return "ok"

    return handlers


class KopfWatch:
    """kopf in its own thread and event loop. It needs its own loop because it cancels every task of the loop at its
    end, and because its liveness probe must detect that the controller's loop hangs."""

    def __init__(
        self,
        resources: Iterable[Resource],
        *,
        namespaces: tuple[str, ...],
        observe: Observe,
        login: Callable[[], Awaitable[Credentials]],
        health: Health,
        liveness_endpoint: str,
        patience_s: float,
    ) -> None:
        """`observe` is called in the event loop of `run`."""
        self._resources, self._namespaces, self._observe = tuple(resources), namespaces, observe
        self._login, self._health = login, health
        self._endpoint, self._patience_s = liveness_endpoint, patience_s
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            Exception: kopf's or the API server's, after which the watch cannot continue.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_exception(error) if error is not None else ended.set_result(None)

        def tell(error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the other loop may be closed by now
                loop.call_soon_threadsafe(settle, error)

        def work() -> None:
            try:
                asyncio.run(self._operator(loop, tell))
            except BaseException as exc:
                # The top of the thread: every error is passed to the other loop.
                tell(exc if isinstance(exc, Exception) else OperatorError(f"the watch ended: {exc!r}"))
            else:
                tell(None)

        threading.Thread(target=work, name="kopf", daemon=True).start()
        try:
            await asyncio.shield(ended)
        finally:
            self._stop.set()
            with suppress(Exception):  # the error was raised above, or the end was requested
                async with asyncio.timeout(_STOP_S):
                    await ended
        raise OperatorError("the watch ended unexpectedly")

    async def _operator(self, loop: asyncio.AbstractEventLoop, tell: Callable[[BaseException | None], None]) -> None:
        """Run kopf until it ends. `tell` is called with an error at once, since kopf's clean-up after an error may take
        long."""

        def observe(event_type: str | None, item: KubeObject) -> None:
            loop.call_soon_threadsafe(self._observe, event_type, item)

        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry(self._resources, observe=observe, login=self._login, health=self._health),
            settings=settings(self._resources, patience_s=self._patience_s),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            liveness_endpoint=self._endpoint,
            stop_flag=self._stop,
        )
        for task in tasks:
            task.add_done_callback(lambda done: None if done.cancelled() else _tell_error(done, tell))
        await kopf.run_tasks(tasks, ignored=others)


def _tell_error(done: asyncio.Future[Any], tell: Callable[[BaseException | None], None]) -> None:
    if (error := done.exception()) is not None:
        tell(error)


def quiet() -> None:
    """Suppress kopf's INFO records, which are for debugging kopf, and its warning about running in a thread."""
    logging.getLogger("kopf").setLevel(max(logging.getLogger().getEffectiveLevel(), logging.WARNING))
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


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
