"""What a cluster's objects cost a gateway: `python -m tests.benchmarks.cluster_table [--pairs 300 1000]`.

No API server: the same raw objects that one sends go through the same view and fleet, in one thread, and the CPU
time of that thread is read. "event" is one watch event from its line of JSON to the swapped table: the part of a
kill's time that is ours. Memory is that of the process, with the client library and the fleet's connections.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import msgspec
import psutil
from slipstream_core.kube.reflector import Change
from slipstream_core.manifest.status import ClassStatus, Phase
from slipstream_core.settings import GatewaySettings
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.sources.cluster.assemble import PAIRS, POLICIES
from slipstream_gateway.sources.cluster.source import ClusterSource
from slipstream_gateway.sources.cluster.view import SLICES, ClusterView, trim

NAMESPACE = "prod"
EVENTS = 200
CLASSES = 10


class Cost(NamedTuple):
    """CPU milliseconds of the first list, and of one event of each kind (median, worst); memory in MiB."""

    pairs: int
    first_ms: float
    resync_ms: float
    events: dict[str, tuple[float, float]]
    memory: float


def _object(kind: str, name: str, generation: int, spec: dict[str, Any], status: object) -> dict[str, Any]:
    metadata = {"namespace": NAMESPACE, "name": name, "uid": f"{kind}-{name}", "generation": generation}
    return {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": kind,
        "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": str(generation)},
        "spec": spec,
        "status": status,
    }


def pair(number: int, generation: int = 1, **spec: Any) -> dict[str, Any]:
    parts = {"target": {"source": "embedded:target"}, "draft": {"kind": "model", "source": "embedded:draft"}}
    name = f"pair-{number}"
    return _object(PAIRS, name, generation, {"model": name, "engine": {"kind": "slipstream"}, **parts, **spec}, {})


def policy(number: int, generation: int = 1, share: float = 0.05, **spec: Any) -> dict[str, Any]:
    classes = [
        msgspec.to_builtins(ClassStatus(name=f"class-{index}/long", phase=Phase.PROGRESSING, share=share))
        for index in range(CLASSES)
    ]
    name = f"pair-{number}"
    return _object(POLICIES, name, generation, {"pair": name, **spec}, {"classes": classes})


def piece(number: int, turn: int = 0) -> dict[str, Any]:
    service = f"slipstream-pair-{number}"
    labels = {"kubernetes.io/service-name": service}
    address = f"10.{turn}.{number >> 8 & 255}.{number & 255}"
    return {
        "metadata": {"namespace": NAMESPACE, "name": f"{service}-1", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": 8001}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }


class Gateway:
    """A view and a fleet joined as the source joins them."""

    def __init__(self) -> None:
        self.fleet = Fleet(lambda key: connect(key, GatewaySettings()), clock=time.monotonic)
        self.view = ClusterView(self._publish, None, ())
        self._sinks = {kind: self.view.sink(kind, None) for kind in (PAIRS, POLICIES, SLICES)}
        self.is_open = False

    def _publish(self) -> None:
        if self.is_open and self.view.take_changes():
            self.fleet.swap(self.view.table())

    def list(self, kind: str, items: list[dict[str, Any]]) -> None:
        self._sinks[kind].replaced([trim(kind)(item) for item in items])

    def event(self, kind: str, line: bytes) -> None:
        self._sinks[kind].changed([Change(trim(kind)(msgspec.json.decode(line)["object"]), deleted=False)])


def _cpu_ms(work: Callable[[], object]) -> float:
    started_s = time.thread_time()
    work()
    return 1e3 * (time.thread_time() - started_s)


def _first_list(gateway: Gateway, count: int) -> None:
    gateway.list(PAIRS, [pair(number) for number in range(count)])
    gateway.list(POLICIES, [policy(number) for number in range(count)])
    gateway.list(SLICES, [piece(number) for number in range(count)])


async def measure(count: int) -> Cost:
    gateway = Gateway()
    lists = _cpu_ms(lambda: _first_list(gateway, count))
    gateway.is_open = True
    lists += _cpu_ms(gateway._publish)
    gc.collect()
    gc.freeze()  # as the application does when it has started
    resync = _cpu_ms(lambda: _first_list(gateway, count))
    makers: dict[str, tuple[str, Callable[[int, int], dict[str, Any]]]] = {
        "kill": (PAIRS, lambda number, turn: pair(number, turn, killSwitch=turn % 2 == 0)),
        "spec": (POLICIES, lambda number, turn: policy(number, turn, minConfidence=1 / turn)),
        "status": (POLICIES, lambda number, turn: policy(number, 999, share=1 / turn)),
        "servers": (SLICES, piece),
    }
    events = {name: _event_cost(gateway, count, *maker) for name, maker in makers.items()}
    gc.collect()
    cost = Cost(count, lists, resync, events, psutil.Process().memory_info().rss / 2**20)
    gc.unfreeze()
    await gateway.fleet.aclose()
    return cost


def _event_cost(
    gateway: Gateway, count: int, kind: str, make: Callable[[int, int], dict[str, Any]]
) -> tuple[float, float]:
    costs = []
    for turn in range(2, 2 + EVENTS):
        line = msgspec.json.encode({"type": "MODIFIED", "object": make(turn * 7 % count, turn)})
        before = gateway.fleet.current
        costs.append(_cpu_ms(lambda line=line: gateway.event(kind, line)))  # type: ignore[misc]
        if gateway.fleet.current is before:
            raise SystemExit(f"a {kind} event changed nothing: what was measured is not what it should be")
    return median(costs), max(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[300, 1000])
    args = parser.parse_args()
    empty = psutil.Process().memory_info().rss / 2**20
    print(f"with everything imported ({ClusterSource.__module__}): {empty:.0f} MiB")
    print(f"{'pairs':>6}  {'first list':>10}  {'resync':>8}  {'MiB':>5}  event: median / worst, CPU ms")
    for count in args.pairs:
        cost = asyncio.run(measure(count))
        events = "   ".join(f"{name} {mid:.2f} / {worst:.2f}" for name, (mid, worst) in cost.events.items())
        print(f"{count:>6}  {cost.first_ms:>7.0f} ms  {cost.resync_ms:>5.0f} ms  {cost.memory:>5.0f}  {events}")


if __name__ == "__main__":
    main()
