"""The gateway's state now, and the console's sections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from slipstream_core.manifest.kill_switch import KillSwitch

from slipstream_gateway.admission import Admission
from slipstream_gateway.console import view
from slipstream_gateway.console.keys import KeysView
from slipstream_gateway.console.map import BreakEvenMap, break_even_map
from slipstream_gateway.console.recent_traffic import RecentTraffic
from slipstream_gateway.console.state import ClassComparison, Entrance, GatewayState, Seat, traffic_of
from slipstream_gateway.console.switching import OwnKillSwitch
from slipstream_gateway.decide.estimate import ArmComparisons
from slipstream_gateway.fleet.fleet import ConfigurationStatus, Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.decider import Learner
from slipstream_gateway.upstreams.pool import Replica

MAP_EVERY_S = 5.0


class StateView:
    """Reads the gateway's state."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        recorder: RecentTraffic,
        evidence: ArmComparisons,
        admission: Admission,
        denied: Callable[[], Mapping[str, int]],
    ) -> None:
        self.fleet = fleet
        self._recorder = recorder
        self._evidence = evidence
        self._admission = admission
        self._denied = denied

    def now(self) -> GatewayState:
        newest, traffic, times, reasons, resumed = traffic_of(self._recorder)
        current = self.fleet.current
        keys = [served.route.key for served in current.routes.values()]
        return GatewayState(
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
        )


class ConsoleView:
    """The console's sections, by name."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        learner: Learner,
        state: StateView,
        switch: KillSwitch,
        own: OwnKillSwitch | None,
        keys: KeysView,
        configuration: Callable[[], ConfigurationStatus],
        version: str,
    ) -> None:
        self._fleet = fleet
        self._learner = learner
        self._state = state
        self._switch = switch
        self._own = own
        self._keys = keys
        self._configuration = configuration
        self._version = version
        self._maps: Sequence[BreakEvenMap] = ()
        self._maps_due_s = 0.0

    async def sections(self) -> Mapping[str, view.Section]:
        """All sections in their present state."""
        state = self._state.now()
        routes = self._fleet.current.routes
        return {
            "gateway": self._gateway(state),
            "pairs": view.pairs(routes, state, self._switch, self._own),
            "traffic": view.traffic(state),
            "speed_up": view.speed_up(state),
            "map": self._break_even(routes, state),
            "latency": view.latency(state),
            "pools": state.seats,
            "resilience": view.resilience(state),
            "keys": await self._keys.section(),
            "rollout": view.rollout(routes),
            "history": view.history(routes, self._switch, self._own),
        }

    def _gateway(self, state: GatewayState) -> view.Section:
        status = self._configuration()
        return {
            "version": self._version,
            "started_s": state.started_s,
            "in_flight": state.in_flight,
            "queued": state.queued,
            "origin": status.origin,
            "connected": status.connected,
            "generation": state.generation,
        }

    def _break_even(self, routes: Mapping[str, ServedRoute], state: GatewayState) -> view.Section:
        """Recomputed every few seconds only, because it is the most expensive part."""
        now_s = time.monotonic()
        if now_s >= self._maps_due_s:
            self._maps_due_s = now_s + MAP_EVERY_S
            self._maps = [
                break_even_map(served, self._learner, view.own_traffic(state, served.route.key))
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
