"""A recorded run with known times."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_tools.bench.cases import Prices
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summarize import summarize
from slipstream_tools.bench.summary import Summary, Thresholds

from tests.gateway.bench.rows import results

CLASSES = ("summary", "label")
# By class: output tokens, seconds per token when plain and when speculative, share of accepted draft tokens.
WORK = {"summary": (200, 0.010, 0.005, 0.9), "label": (5, 0.010, 0.016, 0.25)}
TTFT_S = {"plain": 0.050, "speculative": 0.060, "routed": 0.050}
DRAFT_LENGTH = 4
AGAIN = "slipstream bench --requests calls.jsonl"


def make_rows(
    *, requests: int = 80, classes: Sequence[str] = CLASSES, modes: Sequence[str] = tuple(TTFT_S),
    concurrency: Sequence[int] = (1,), prompt: str = "Hello", error: str | None = None,
) -> list[Row]:  # fmt: skip
    """Rows of requests that alternate between classes; the routed answer takes the better arm."""
    return [
        _row(index, classes[index % len(classes)], list(WORK)[index % 2], mode, level, prompt, error)
        for level in concurrency
        for index in range(requests)
        for mode in modes
    ]


def _row(index: int, name: str, kind: str, mode: str, level: int, prompt: str, error: str | None) -> Row:
    tokens, plain_s, speculative_s, accepted = WORK[kind]
    speculates = mode == "speculative" or (mode == "routed" and kind == "summary")
    tpot_s = (speculative_s if speculates else plain_s) * level
    ttft_s = TTFT_S["speculative" if speculates else "plain"]
    steps = 100
    return Row(
        index=index, round=0, mode=mode, label=name, concurrency=level, phase="measure",
        request={"model": "m", "messages": [{"role": "user", "content": prompt}], "temperature": 0},
        arm="speculative" if speculates else "plain", request_class=f"{kind}/long",
        draft_length=DRAFT_LENGTH if speculates else 0, status=None if error else 200, error=error,
        saving_ms=100.0 if mode == "routed" and kind == "summary" else -10.0 if mode == "routed" else None,
        ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=ttft_s + (tokens - 1) * tpot_s + index * 1e-6,
        output_tokens=tokens, drafted=400 if speculates else 0, accepted=int(400 * accepted) if speculates else 0,
        steps=steps, rejected_at=(10, 20, 5, 5) if speculates else (), text_hash="same",
        checks={"label": 1.0}, passed=True, started_s=index * 10.0,
    )  # fmt: skip


def make_summary(rows: list[Row], *, price: float | None = 2.0, source: str = "calls.jsonl") -> Summary:
    empty = {} if rows else {"modes": ("plain",), "concurrency": (1,)}
    found = results(rows, requests=source, system="pair.yaml@0123456789ab", warmup=1, seed=3, **empty)
    prices = Prices(plain=price, speculative=price)
    return summarize(found, thresholds=Thresholds(), prices=prices)
