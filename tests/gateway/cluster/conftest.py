"""A real API server with kinds that let everything through, as a newer version's would, and sources that watch it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.kube.reflector import Pace
from slipstream_core.settings import ClusterSettings, GatewaySettings
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.sources.cluster.source import ClusterSource

from tests.support import polling
from tests.support.kube import KubeApiServer
from tests.support.polling import PATIENCE_S

API = "/apis/slipstream.dev/v1alpha1"
QUICK = Pace(watch_s=4.0, grace_s=0.5, resync_s=60.0, first_pause_s=0.05, longest_pause_s=0.3)


def _kind(plural: str, kind: str) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": anything},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.slipstream.dev"},
        "spec": {
            "group": "slipstream.dev",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def _install(server: KubeApiServer) -> None:
    client = server.client()
    for plural, kind in (("modelpairs", "ModelPair"), ("speculationpolicies", "SpeculationPolicy")):
        client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _kind(plural, kind))
        polling.eventually(
            lambda plural=plural: client.exists(f"{API}/namespaces/default/{plural}"), f"{plural} are served"
        )


@pytest.fixture(scope="session")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """An API server whose kinds have no schema. Nobody stops or halts it."""
    with KubeApiServer(tmp_path_factory.mktemp("lenient")) as server:
        _install(server)
        yield server


@pytest.fixture(scope="module")
def unsteady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """Another one, for a module that stops and halts it; it runs again after each test that uses `outages`."""
    with KubeApiServer(tmp_path_factory.mktemp("unsteady")) as server:
        _install(server)
        yield server


@pytest.fixture
def outages(unsteady: KubeApiServer) -> Iterator[KubeApiServer]:
    yield unsteady
    unsteady.resume()
    unsteady.start()


@pytest.fixture(scope="session")
def _lasting() -> ThreadPoolExecutor:
    """A thread that outlives every server: one that is started from another thread ends with that thread."""
    return ThreadPoolExecutor(1)


@pytest.fixture
def aside(_lasting: ThreadPoolExecutor) -> Callable[[Callable[[], None]], Awaitable[None]]:
    """Starts a server while the event loop goes on."""
    return lambda start: asyncio.get_running_loop().run_in_executor(_lasting, start)


@pytest.fixture
def patient_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that leaves gives a busy machine the time to take its report away."""
    monkeypatch.setattr("slipstream_gateway.sources.cluster.reporting._DELETE_TIMEOUT_S", PATIENCE_S)


class Space:
    """A namespace of one test: its objects by short calls."""

    def __init__(self, server: KubeApiServer, name: str | None = None) -> None:
        self.server = server
        self.client = server.client()
        self.name = server.namespace(name or f"test-{uuid.uuid4().hex[:10]}")

    def path(self, kind: str, name: str = "") -> str:
        plural = {"ModelPair": "modelpairs", "SpeculationPolicy": "speculationpolicies"}[kind]
        return f"{API}/namespaces/{self.name}/{plural}{'/' + name if name else ''}"

    def create(self, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": "slipstream.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.client.create(self.path(kind), body)

    def pair(self, name: str, **spec: Any) -> dict[str, Any]:
        arm = {"protocol": "openai", "endpoints": ["http://127.0.0.1:9"], "model": "up"}
        engine = {"kind": "external", "arms": {"plain": arm, "speculative": arm}}
        return self.create("ModelPair", name, {"model": name, "engine": engine, **spec})

    def triton_pair(self, name: str, **spec: Any) -> dict[str, Any]:
        parts = {"target": {"source": "embedded:target"}, "draft": {"kind": "model", "source": "embedded:draft"}}
        return self.create("ModelPair", name, {"model": name, "engine": {"kind": "slipstream"}, **parts, **spec})

    def policy(self, name: str, pair: str | None = None, **spec: Any) -> dict[str, Any]:
        return self.create("SpeculationPolicy", name, {"pair": pair or name, **spec})

    def patch(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        return self.client.patch(self.path(kind, name), {"spec": spec})

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.server.kubeconfig(user, namespace=self.name)

    def reports(self) -> list[dict[str, Any]]:
        return self.client.items(f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases")


@pytest.fixture
def space(lenient: KubeApiServer) -> Space:
    return Space(lenient)


@pytest.fixture
def new_space() -> Callable[..., Space]:
    return Space


class Watched:
    """A source with its fleet, as a gateway has them."""

    def __init__(self, source: ClusterSource, fleet: Fleet) -> None:
        self.source = source
        self.fleet = fleet

    @property
    def routes(self) -> Any:
        return self.fleet.current.table.routes


@pytest.fixture
def watch() -> Callable[..., contextlib.AbstractAsyncContextManager[Watched]]:
    """A source that watches a space, or several."""

    @contextlib.asynccontextmanager
    async def start(
        *spaces: Space, user: str = "admin", pace: Pace = QUICK, renew_s: float = 10.0, **options: Any
    ) -> AsyncIterator[Watched]:
        options.setdefault("namespaces", tuple(space.name for space in spaces))
        settings = ClusterSettings(kubeconfig=spaces[0].kubeconfig(user), report_namespace=spaces[0].name, **options)
        fleet = Fleet(lambda key: connect(key, GatewaySettings()), clock=time.monotonic)
        try:
            async with ClusterSource(settings, fleet, pace=pace, renew_s=renew_s) as source:
                yield Watched(source, fleet)
        finally:
            await fleet.aclose()

    return start
