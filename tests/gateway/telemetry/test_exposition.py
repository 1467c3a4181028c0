"""Several workers' metrics as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_gateway.telemetry.workers import merge

SERIES = st.dictionaries(
    st.tuples(st.sampled_from(["a_total", "b_bucket"]), st.sampled_from(["x", "y z", 'q\\"}'])),
    st.integers(0, 1000),
    max_size=5,
)


def text_of(series: dict[tuple[str, str], int]) -> bytes:
    lines = ["# HELP a_total What a is.", "# TYPE a_total counter"]
    lines += [f'{name}{{label="{label}"}} {value}.0' for (name, label), value in series.items()]
    return "".join(f"{line}\n" for line in lines).encode()


def values_of(text: bytes) -> dict[str, float]:
    rows = [line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in rows}


@given(st.lists(SERIES, min_size=1, max_size=4))
def test_every_series_is_the_sum_over_workers(workers: list[dict[tuple[str, str], int]]) -> None:
    merged = merge([text_of(worker) for worker in workers])
    expected: dict[str, float] = {}
    for worker in workers:
        for series, value in values_of(text_of(worker)).items():
            expected[series] = expected.get(series, 0.0) + value
    assert values_of(merged) == expected
    assert merged.count(b"# HELP a_total") == merged.count(b"# TYPE a_total") == 1


def test_what_is_no_count_is_the_mean_of_the_workers_that_have_it() -> None:
    head = b"# HELP slipstream_effect_e2e_seconds x\n# TYPE slipstream_effect_e2e_seconds gauge\n"
    one = head + b'slipstream_effect_e2e_seconds{class="a"} -0.4\nslipstream_effect_e2e_seconds{class="b"} 1.0\n'
    other = head + b'slipstream_effect_e2e_seconds{class="a"} -0.2\n'
    lines = merge([one, other]).decode().splitlines()
    assert 'slipstream_effect_e2e_seconds{class="b"} 1.0' in lines
    [value] = [line.rpartition(" ")[2] for line in lines if 'class="a"' in line]
    assert float(value) == pytest.approx(-0.3)
