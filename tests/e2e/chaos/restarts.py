"""Gateways are replaced one after the other, as a rolling update does, under hundreds of streams."""

from __future__ import annotations

from collections.abc import Iterator

from tests.e2e.chaos.asks import Ask, chat
from tests.e2e.chaos.load import Load
from tests.e2e.chaos.paced_server import text_of
from tests.e2e.chaos.processes import DRAIN_S
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.verdicts import Expected, Tally
from tests.e2e.chaos.world import Scale, World

GAP_MS = 100
ENGINE_CLIENTS = 4
_REACHED_S = 120.0


def rolling_restart(world: World, scale: Scale) -> Iterator[Reading]:
    """Two gateways, each ended by SIGTERM in the middle of its streams and started again. Clients that are refused a
    connection turn to the other one."""
    gateways = [world.new_gateway(f"rolling-{number}") for number in range(2)]
    paced = _paced(scale.stream_words)
    try:
        for gateway in gateways:
            gateway.start()
        urls = [gateway.url for gateway in gateways]
        with Load(urls, [paced], clients=scale.streams) as streams, world.load(*urls, clients=ENGINE_CLIENTS) as mixed:
            drained = 0
            for gateway in gateways:
                streams.wait(
                    lambda: streams.streaming() >= scale.streams * 9 // 10, "all streams run", within_s=_REACHED_S
                )
                drained += gateway.terminate(within_s=DRAIN_S + 5)
                gateway.start()
            streams.wait_answers(scale.streams)
    finally:
        for gateway in gateways:
            gateway.stop()
    yield _reading(streams, world.tally(mixed), drained, scale)


def _paced(words: int) -> Ask:
    fields = {"model": "paced", "max_tokens": words, "seed": GAP_MS, "stream": True}
    return chat("paced stream", "x", {}, **fields, stream_options={"include_usage": True})


def _reading(streams: Load, mixed: Tally, drained: int, scale: Scale) -> Reading:
    words = scale.stream_words
    expected = Expected(texts=(text_of(words),), finish_reasons=("stop",), output_tokens=words)
    paced = Tally.of(streams.answers, {"paced stream": expected})
    broken = paced.unacceptable + mixed.unacceptable
    return Reading(
        fault=f"rolling restart, {scale.streams} streams",
        goal="0 broken streams",
        measured=(
            f"{paced.requests} streams: {paced.summary()}; mixed load: {mixed.summary()}; {drained} of 2 "
            f"ended in time; {streams.turned} times the other gateway"
        ),
        passed=broken == 0 and drained == 2,
        figures={"streams": dict(paced.counts), "mixed": dict(mixed.counts), "turned": streams.turned},
        notes=(*paced.examples(), *mixed.examples()),
    )
