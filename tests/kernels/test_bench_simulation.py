"""The simulation of the early exit reads what must be read, and gains where it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
from slipstream_kernels.spec_verify.benchmark.simulation import Layout, Machine, accepted_counts, simulate

VOCABULARY = 128_256
LAYOUT = Layout(splits=8, block=8192, per_multiprocessor=4)
MACHINE = Machine()


def test_without_the_early_exit_every_row_is_read() -> None:
    outcome = simulate(accepted_counts(16, 4, 0.5, 1), 4, VOCABULARY, LAYOUT, MACHINE, lazy=False)
    assert outcome.rows_read == outcome.rows == 80


@pytest.mark.parametrize("requests", [1, 64, 256])
def test_no_row_that_must_be_read_is_left_out(requests: int) -> None:
    outcome = simulate(accepted_counts(requests, 4, 0.7, 1), 4, VOCABULARY, LAYOUT, MACHINE)
    assert outcome.rows_needed <= outcome.rows_read + 1e-9
    assert outcome.rows_read <= outcome.rows


def test_one_request_is_under_way_as_a_whole_before_anything_is_known() -> None:
    outcome = simulate([0], 4, VOCABULARY, LAYOUT, MACHINE)
    assert outcome.rows_read == outcome.rows


def test_large_batches_read_little_in_vain() -> None:
    outcome = simulate(accepted_counts(256, 4, 0.7, 1), 4, VOCABULARY, LAYOUT, MACHINE)
    assert outcome.rows_read < 1.1 * outcome.rows_needed


def test_it_takes_at_least_the_bytes_over_the_bandwidth() -> None:
    accepted = accepted_counts(128, 4, 0.7, 1)
    outcome = simulate(accepted, 4, VOCABULARY, LAYOUT, MACHINE)
    assert outcome.time_us > outcome.rows_read * VOCABULARY * 2 / MACHINE.bandwidth_bytes_per_us


def test_a_slower_decision_never_saves_rows() -> None:
    accepted = accepted_counts(128, 4, 0.7, 1)
    slow = replace(MACHINE, decision_us=6.0)
    quick = simulate(accepted, 4, VOCABULARY, LAYOUT, MACHINE)
    assert simulate(accepted, 4, VOCABULARY, LAYOUT, slow).rows_read >= quick.rows_read
