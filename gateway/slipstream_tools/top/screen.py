"""One frame of `slipstream top`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slipstream_tools.top.figures import ClassEffects, Effect, Figures, Pair, Row, Seat

_DASH = "–"
_ARMS = ("speculative", "plain", "control")
_STYLES = {"speculative": "yellow", "plain": "bright_black", "control": "blue"}
_BAR = 12
_MOST_CLASSES = 20


def frame(figures: Figures, *, state: str = "live") -> RenderableType:
    """Everything, pair by pair. `state` is `live`, or says why it is not."""
    gateway = figures.gateway
    workers = f"{gateway.workers} worker{'' if gateway.workers == 1 else 's'}"
    head = Text.assemble(
        ("Slipstream", "bold"), f" {gateway.version}  {workers}  ",
        f"{gateway.in_flight} in flight, {gateway.queued} waiting",
        f"  configuration from {gateway.origin}{'' if gateway.connected else ' (not connected)'}  ",
        (state, "green" if state == "live" else "bold red"),
    )  # fmt: skip
    parts: list[RenderableType] = [head]
    for pair in figures.pairs:
        parts += ["", *_pair(figures, pair)]
    return Group(*parts)


def _pair(figures: Figures, pair: Pair) -> Iterable[RenderableType]:
    rows = [row for row in figures.traffic.rows if row.pair == pair.pair]
    yield Text.assemble((pair.model, "bold"), "  ", _standing(pair))
    yield _summary(figures, pair, rows)
    yield _classes(figures, pair, rows)
    yield _latency(figures, pair)
    yield _servers([seat for seat in figures.pools if seat.pair == pair.pair])


def _standing(pair: Pair) -> Text:
    if not pair.has_draft:
        return Text("no draft: nothing speculates", "bright_black")
    if pair.kill is not None:
        why = f": {pair.kill.reason}" if pair.kill.reason else ""
        return Text(f"STOPPED by {pair.kill.by} at {pair.kill.at}{why}", "bold red")
    if pair.killed:
        return Text("STOPPED by a kill switch", "bold red")
    return Text("speculation is on, where it pays", "green") if pair.ready else Text(pair.status, "red")


def _summary(figures: Figures, pair: Pair, rows: Sequence[Row]) -> Text:
    recent = figures.traffic.recent_buckets
    requests = sum(sum(row.requests[-recent:]) for row in rows)
    speculative = sum(sum(row.requests[-recent:]) for row in rows if row.arm == "speculative")
    drafted = sum(sum(row.drafted[-recent:]) for row in rows)
    accepted = sum(sum(row.accepted[-recent:]) for row in rows)
    effect = next((found.overall.e2e_s for found in figures.speed_up if found.pair == pair.pair), Effect())
    # The newest bucket is half full on average.
    rate = requests / ((recent - 0.5) * figures.traffic.bucket_s)
    return Text(
        f"{rate:.1f} requests/s   {_share(speculative, requests)} speculative   "
        f"acceptance {_share(accepted, drafted)}   "
        f"live speed-up {_speed_up(effect)}   {sum(row.failed for row in rows)} failed in 15 min"
    )


def _classes(figures: Figures, pair: Pair, rows: Sequence[Row]) -> Table:
    table = _table("class", "1 min", "arms", "accept", "TTFT", "TPOT", "E2E control/speculative")
    effects = {
        entry.request_class: entry for found in figures.speed_up if found.pair == pair.pair for entry in found.classes
    }
    recent = figures.traffic.recent_buckets
    names = sorted({row.request_class for row in rows}, key=lambda name: (-_window(rows, name), name))
    for name in names[:_MOST_CLASSES]:
        own = [row for row in rows if row.request_class == name]
        counts = {arm: sum(sum(row.requests[-recent:]) for row in own if row.arm == arm) for arm in _ARMS}
        effect = effects.get(name, ClassEffects(request_class=name))
        table.add_row(
            name,
            str(sum(counts.values())),
            _bar(counts),
            _share(sum(sum(row.accepted) for row in own), sum(sum(row.drafted) for row in own)),
            _times(effect.ttft_s.speed_up),
            _times(effect.tpot_s.speed_up),
            _speed_up(effect.e2e_s),
        )
    if not names:
        table.add_row("no requests yet", *[""] * 6)
    return table


def _latency(figures: Figures, pair: Pair) -> Table:
    table = _table("p50 / p95 / p99", *_ARMS)
    for measure in ("ttft", "tpot", "e2e"):
        cells = []
        for arm in _ARMS:
            found = next(
                (row for row in figures.latency if (row.pair, row.arm, row.measure) == (pair.pair, arm, measure)), None
            )
            cells.append(f"{_ms(found.p50_s)} / {_ms(found.p95_s)} / {_ms(found.p99_s)}" if found else _DASH)
        table.add_row(measure.upper(), *cells)
    return table


def _servers(seats: Sequence[Seat]) -> Table:
    table = _table("server", "outstanding", "plain", "speculative")
    for server in dict.fromkeys(seat.server for seat in seats):
        own = {seat.arm: seat for seat in seats if seat.server == server}
        busiest = max(seat.outstanding for seat in own.values())
        table.add_row(server, str(busiest), _health(own.get("plain")), _health(own.get("speculative")))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bright_black")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="left" if name in ("arms", "plain", "speculative", "control") else "right")
    return table


def _window(rows: Sequence[Row], request_class: str) -> int:
    return sum(sum(row.requests) for row in rows if row.request_class == request_class)


def _bar(counts: dict[str, int]) -> Text:
    total, bar = sum(counts.values()), Text()
    for arm, count in counts.items():
        bar.append("█" * round(_BAR * count / total) if total else "", _STYLES[arm])
    return bar


def _health(seat: Seat | None) -> Text:
    if seat is None:
        return Text(_DASH, "bright_black")
    if seat.circuit == "closed":
        return Text("up", "green")
    return Text(f"out{f': {seat.cause}' if seat.cause else ''}", "red")


def _speed_up(effect: Effect) -> str:
    if effect.speed_up is None or effect.speed_up_low is None or effect.speed_up_high is None:
        return _DASH
    return f"{effect.speed_up:.2f}x ({effect.speed_up_low:.2f}-{effect.speed_up_high:.2f})"


def _times(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}x"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else _DASH


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"
