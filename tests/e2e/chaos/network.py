"""A bad network before the gateway and behind it: packets are lost, late, and connections are reset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.benchmarks.harness import percentile
from tests.e2e.chaos.load import Load
from tests.e2e.chaos.processes import Gateway, from_file
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.verdicts import Verdict
from tests.e2e.chaos.wire import FAR, NEAR, NotHere, Wire
from tests.e2e.chaos.world import Scale, World
from tests.support.network import Network
from tests.support.ports import lasting_ports

LOSS = 0.05
DELAY_S = 0.2  # there and back
CLIENTS = 8
_RESET_EVERY_S = 4.0  # each replica's connections; in turns
_GOAL = "0 failed, 0 wrong, no hang"


def network(world: World, scale: Scale) -> Iterator[Reading]:
    """The gateway is in a namespace of its own; clients and Triton are at the other end of the link."""
    with ExitStack() as stack:
        try:
            wire = stack.enter_context(Wire(f"slipstream-chaos-{lasting_ports(1)[0]}"))
        except NotHere as reason:
            yield Reading(fault="network", goal=_GOAL, measured=f"not available: {reason}", passed=None)
            return
        relays = [stack.enter_context(Network(replica.ports.grpc, host=NEAR)) for replica in world.replicas]
        gateway = _gateway(world, wire, relays)
        stack.callback(gateway.stop)
        gateway.start()
        yield from _faults(world, scale, wire, gateway, relays)


def _faults(world: World, scale: Scale, wire: Wire, gateway: Gateway, relays: Sequence[Network]) -> Iterator[Reading]:
    def resets(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for relay in relays:
                wire.reset(relay.port)
                time.sleep(_RESET_EVERY_S / len(relays))

    def impaired(**impairment: float) -> Callable[[float], None]:
        def play(seconds: float) -> None:
            wire.impair(**impairment)
            time.sleep(seconds)
            wire.impair()

        return play

    name = f"network: {LOSS:.0%} loss"
    yield _measure(world, gateway, name, impaired(loss=LOSS), scale.network_s)
    name = f"network: {1e3 * DELAY_S:g} ms delay"
    yield _measure(world, gateway, name, impaired(delay_s=DELAY_S / 2), scale.network_s)
    yield _measure(world, gateway, f"network: resets, every {_RESET_EVERY_S:g} s", resets, scale.network_s)


def _measure(world: World, gateway: Gateway, name: str, play: Callable[[float], None], seconds: float) -> Reading:
    with Load([gateway.url], world.recorded.asks, clients=CLIENTS) as load:
        load.wait_streaming()
        play(seconds)
        load.wait_answers(CLIENTS)
    tally = world.tally(load)
    ttft_s = [answer.ttft_s for answer in load.answers if answer.ttft_s is not None]
    return Reading(
        fault=name,
        goal=_GOAL,
        measured=(
            f"{tally.requests} requests: {tally.summary()}; {sum(bool(a.resumed) for a in load.answers)} resumed; "
            f"TTFT p99 {1e3 * percentile(ttft_s, 0.99):.0f} ms"
        ),
        passed=tally.unacceptable == 0 and not tally.counts[Verdict.HUNG],
        figures={**tally.counts, "ttft_s": ttft_s},
        notes=tuple(tally.examples()),
    )


def _gateway(world: World, wire: Wire, relays: Sequence[Network]) -> Gateway:
    """It listens on the link, where nobody else is: without keys it says so."""
    return Gateway(
        name="far-gateway",
        folder=world.folder,
        source=from_file(EMBEDDED_MANIFEST, [f"grpc://{NEAR}:{relay.port}" for relay in relays]),
        host=FAR,
        port=lasting_ports(1)[0],
        options=("--allow-anonymous",),
        prefix=wire.command(),
    )
