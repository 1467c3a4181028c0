"""The gateway's report of the generations that it applies: a Lease, renewed at intervals and after each change.

A report that cannot be written is logged, and changes nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import multiprocessing
import os
import random
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import msgspec
from slipstream_core.kube.client import Json, KubeClient
from slipstream_core.kube.errors import KubeError, KubeNotFound, KubeUnreachable
from slipstream_core.manifest.reports import (
    EVERY_PAIR,
    RENEW_S,
    GatewayReport,
    UnreachableServers,
    WithheldServer,
    report_lease,
)
from slipstream_core.settings import Pod

COALESCE_S = 0.01
_LONGEST_PAUSE_S = RENEW_S  # after an outage the report is renewed before the gateway counts as silent
_DELETE_TIMEOUT_S = 2.0
_MOST_BYTES = 180_000  # of applied generations: an object's annotations may have 256 KiB
_MOST_IN_USE_BYTES = 16_000
_MOST_WAITING_BYTES = 4_000
_log = logging.getLogger(__name__)


class Reporter:
    """Writes one Lease. `applied` gives the generation of every object by `manifest.reports.applied_key`, in the order
    in which they changed; `withheld` the servers that may not speculate, `unreachable` those that do not answer,
    `in_use` the pairs that clients ask for and `waiting` those whose requests wait, as `GatewayReport` has them;
    `namespaces` are those that are watched, none for all; `owner` is the pod that it goes with.

    `reachable` is False while the server does not answer.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        namespaces: tuple[str, ...],
        applied: Callable[[], Mapping[str, int]],
        withheld: Callable[[], Mapping[str, Sequence[WithheldServer]]],
        unreachable: Callable[[], Mapping[str, UnreachableServers] | None] = lambda: None,
        in_use: Callable[[], Sequence[str]] = tuple,
        waiting: Callable[[], Sequence[str]] = tuple,
        owner: Pod | None = None,
        renew_s: float = RENEW_S,
    ) -> None:
        self.name = report_name(owner)
        self.reachable = True
        self.contact_s = 0.0
        self._client = client
        self._namespace = namespace
        self._namespaces = namespaces
        self._applied = applied
        self._withheld = withheld
        self._unreachable = unreachable
        self._in_use = in_use
        self._waiting = waiting
        self._owners = () if owner is None else (_reference(owner),)
        self._renew_s = renew_s
        self._changed = asyncio.Event()
        self._problem = ""
        self._failures = 0
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def changed(self) -> None:
        """Another generation was applied, other servers answer, or other pairs are asked for."""
        self._changed.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            self._changed.clear()
            await self._write()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()
            except TimeoutError:
                continue
            # A patch of many objects causes many events; and a server that refuses must not be asked more often.
            await asyncio.sleep(COALESCE_S if not self._failures else self._pause_s())

    async def withdraw(self) -> None:
        """Delete the report, since this gateway ends. Never raises."""
        try:
            async with asyncio.timeout(_DELETE_TIMEOUT_S):
                await self._client.delete(f"{self._folder}/{self.name}")
        except (KubeError, TimeoutError) as exc:
            _log.info("the report %s could not be deleted: %s", self.name, exc)
        except Exception:  # the end of the gateway: the rest must be closed after any error
            _log.exception("the report %s could not be deleted", self.name)

    def _pause_s(self) -> float:
        if not self._failures:
            return self._renew_s
        return min(2.0**self._failures, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.5)

    async def _write(self) -> None:
        try:
            await self._patch_or_create(self._lease())
        except KubeError as exc:
            self.reachable = not isinstance(exc, KubeUnreachable)
            self._failures = min(self._failures + 1, 10)
            if str(exc) != self._problem:
                _log.warning("the gateway's report cannot be written: %s", exc)
            self._problem = str(exc)
        except Exception:  # the top of the task: the report is of no use to requests
            self._failures = min(self._failures + 1, 10)
            _log.exception("the gateway's report cannot be written")
        else:
            self.reachable, self._failures, self._problem = True, 0, ""
            self.contact_s = time.monotonic()

    async def _patch_or_create(self, lease: Json) -> None:
        try:
            await self._client.merge(f"{self._folder}/{self.name}", lease)
        except KubeNotFound:
            await self._client.create(self._folder, lease)

    def _lease(self) -> Json:
        report = GatewayReport(
            name=self.name,
            namespaces=self._namespaces,
            applied=_fitting(self._applied()),
            renewed=datetime.now(UTC),
            withheld=self._withheld(),
            unreachable=self._unreachable(),
            in_use=_fitting_names(self._in_use(), _MOST_IN_USE_BYTES, rest=(EVERY_PAIR,)),
            waiting=_fitting_names(self._waiting(), _MOST_WAITING_BYTES),
        )
        return report_lease(report, namespace=self._namespace, owners=self._owners)


def report_name(pod: Pod | None) -> str:
    """`slipstream-gateway-<host>-<6 hex>` of this worker: the same for its replacement in the same pod (outside
    of one: under the same supervisor), so that it goes on with that report instead of leaving it behind. Pods that
    share a host's name do not share it."""
    host, parent = socket.gethostname(), multiprocessing.parent_process()
    home = pod.uid if pod is not None else str(os.getpid() if parent is None else parent.pid)
    worker = multiprocessing.current_process().name  # `serve` numbers them
    digest = hashlib.sha256(f"{host}/{home}/{worker}".encode()).hexdigest()[:6]
    label = re.sub(r"[^a-z0-9.-]+", "-", host.lower()).strip("-.") or "host"
    return f"slipstream-gateway-{label[:200]}-{digest}"


def _reference(pod: Pod) -> Mapping[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}


def _fitting(applied: Mapping[str, int]) -> Mapping[str, int]:
    """As many of the last entries of `applied` as an annotation can hold."""
    if len(msgspec.json.encode(applied)) <= _MOST_BYTES:
        return applied
    fitting: dict[str, int] = {}
    size = 0
    for key, generation in reversed(list(applied.items())):
        size += len(key) + 16
        if size > _MOST_BYTES:
            break
        fitting[key] = generation
    return fitting


def _fitting_names(names: Sequence[str], most_bytes: int, *, rest: Sequence[str] = ()) -> Sequence[str]:
    """As many of the first names as fit into the report, and `rest` if some do not."""
    sizes = accumulate(len(name) + 3 for name in names)
    fitting = tuple(name for name, size in zip(names, sizes, strict=True) if size <= most_bytes)
    return fitting if len(fitting) == len(names) else (*fitting, *rest)
