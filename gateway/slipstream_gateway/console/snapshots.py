"""This worker's own snapshot, and the console's sections from the snapshots of all workers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from slipstream_core.manifest.kill_switch import KillSwitch

from slipstream_gateway.admission import Admission
from slipstream_gateway.console import view
from slipstream_gateway.console.keys import KeysView
from slipstream_gateway.console.map import BreakEvenMap, break_even_map
from slipstream_gateway.console.merging import merged
from slipstream_gateway.console.recent_traffic import RecentTraffic
from slipstream_gateway.console.switching import OwnKillSwitch
from slipstream_gateway.console.worker import ClassComparison, Entrance, Seat, WorkerSnapshot, traffic_of
from slipstream_gateway.decide.estimate import ArmComparisons
from slipstream_gateway.fleet.fleet import ConfigurationStatus, Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.decider import Learner
from slipstream_gateway.telemetry.workers import PeerQuery, WorkerPeers
from slipstream_gateway.upstreams.pool import Replica

MAP_EVERY_S = 5.0
_decoder = msgspec.json.Decoder(WorkerSnapshot)


class WorkerView:
    """The state of this worker. `shares`: outcomes of all workers arrive through the store."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        recorder: RecentTraffic,
        evidence: ArmComparisons,
        admission: Admission,
        denied: Callable[[], Mapping[str, int]],
        keys: KeysView,
        shares: bool,
    ) -> None:
        self.fleet = fleet
        self._recorder = recorder
        self._evidence = evidence
        self._admission = admission
        self._denied = denied
        self._keys = keys
        self._shares = shares

    def snapshot(self) -> WorkerSnapshot:
        newest, traffic, times, reasons, resumed = traffic_of(self._recorder)
        current = self.fleet.current
        keys = [served.route.key for served in current.routes.values()]
        return WorkerSnapshot(
            worker=multiprocessing.current_process().name,
            bucket=newest,
            started_s=self._recorder.started_s,
            traffic=traffic,
            times=times,
            reasons=reasons,
            resumed=resumed,
            entrances=[
                Entrance(
                    pair=gate.pair,
                    limit=gate.limit,
                    in_flight=gate.in_flight,
                    queued=gate.queued,
                    pressure=round(gate.pressure, 3),
                    refused=gate.refused,
                )
                for gate in self._admission.snapshot()
            ],
            denied=dict(self._denied()),
            uses=self._keys.local(),
            seats=[seat for served in current.routes.values() for seat in _seats(served)],
            comparisons=[
                ClassComparison(pair=key, request_class=name, found=found)
                for key in keys
                for name, found in self._evidence.comparisons(key).items()
            ],
            in_flight=self._admission.in_flight,
            queued=self._admission.queued,
            killed=sorted(current.killed),
            generation=current.table.generation,
            shares=self._shares,
        )

    def encoded(self) -> bytes:
        """The snapshot as JSON, for other workers."""
        return msgspec.json.encode(self.snapshot())


async def all_snapshots(peers: WorkerPeers) -> list[WorkerSnapshot]:
    """The snapshot of every worker, this one's first; unreadable ones of another version are left out."""
    found = []
    for answer in await peers.ask(PeerQuery.SNAPSHOT):
        try:
            found.append(_decoder.decode(answer))
        except msgspec.DecodeError:
            continue
    return found


class ConsoleView:
    """The console's sections, by name."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        learner: Learner,
        peers: WorkerPeers,
        switch: KillSwitch,
        own: OwnKillSwitch | None,
        keys: KeysView,
        configuration: Callable[[], ConfigurationStatus],
        version: str,
    ) -> None:
        self._fleet = fleet
        self._learner = learner
        self._peers = peers
        self._switch = switch
        self._own = own
        self._keys = keys
        self._configuration = configuration
        self._version = version
        self._maps: Sequence[BreakEvenMap] = ()
        self._maps_due_s = 0.0

    async def sections(self) -> Mapping[str, view.Section]:
        """All sections in their present state."""
        workers = await all_snapshots(self._peers)
        everything = merged(workers)
        routes = self._fleet.current.routes
        return {
            "gateway": self._gateway(everything, len(workers)),
            "pairs": view.pairs(routes, everything, self._switch, self._own),
            "traffic": view.traffic(everything),
            "speed_up": view.speed_up(everything),
            "map": self._break_even(routes, everything),
            "latency": view.latency(everything),
            "pools": everything.seats,
            "resilience": view.resilience(everything),
            "keys": await self._keys.section(everything.uses),
            "rollout": view.rollout(routes),
            "history": view.history(routes, self._switch, self._own),
        }

    def _gateway(self, everything: WorkerSnapshot, workers: int) -> view.Section:
        status = self._configuration()
        return {
            "version": self._version,
            "workers": workers,
            "started_s": everything.started_s,
            "in_flight": everything.in_flight,
            "queued": everything.queued,
            "origin": status.origin,
            "connected": status.connected,
            "generation": everything.generation,
        }

    def _break_even(self, routes: Mapping[str, ServedRoute], everything: WorkerSnapshot) -> view.Section:
        """Recomputed every few seconds only, because it is the most expensive part."""
        now_s = time.monotonic()
        if now_s >= self._maps_due_s:
            self._maps_due_s = now_s + MAP_EVERY_S
            self._maps = [
                break_even_map(served, self._learner, view.own_traffic(everything, served.route.key))
                for served in routes.values()
            ]
        return self._maps


def _seats(served: ServedRoute) -> list[Seat]:
    pair = served.route.key
    arms = (("plain", served.plain), ("speculative", served.speculative), ("fallback", served.fallback))
    return [
        Seat(
            pair=pair,
            arm=arm,
            server=state.name,
            outstanding=state.outstanding,
            circuit=state.circuit,
            cause=state.cause,
            retry_after_s=round(state.retry_after_s, 1),
            withheld=_withheld(replica) if arm == "speculative" else {},
            longest_draft=_shorter_draft(replica, served) if arm == "speculative" else None,
        )
        for arm, pool in arms
        if pool is not None
        for replica, state in zip(pool.replicas, pool.states(), strict=True)
    ]


def _withheld(replica: Replica) -> dict[str, str]:
    return {capability.value: why.reason.value for capability, why in replica.withheld_now().items()}


def _shorter_draft(replica: Replica, served: ServedRoute) -> int | None:
    longest = replica.upstream.drafting.longest
    return longest if longest is not None and longest < served.route.pair.spec.max_draft_tokens else None
