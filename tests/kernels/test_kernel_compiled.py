"""What the compiler makes of the kernels for GPUs that are not here: registers, spills, wide loads."""

from __future__ import annotations

import json

import pytest

from tests.kernels.interpreter import run_compiling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the compiler's time, on a busy machine

THREADS_OF_A_PROCESSOR = 2048
REGISTERS_OF_A_PROCESSOR = 65_536


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, int]]:
    """Each variant's figures, from a process in which kernels are compiled and not interpreted."""
    return json.loads(run_compiling("-m", "tests.kernels.ahead_of_time"))


def scans(compiled: dict[str, dict[str, int]]) -> list[tuple[str, dict[str, int]]]:
    """The figures of the launch that reads all logits."""
    return [(name, figures) for name, figures in compiled.items() if ": scan " in name]


def test_every_variant_compiles_for_every_generation(compiled: dict[str, dict[str, int]]) -> None:
    generations = {name.rsplit(" ", 1)[1] for name in compiled}
    assert generations >= {"sm_80", "sm_90", "sm_100"}
    assert len(compiled) >= 14


def test_no_tile_is_spilled_where_logits_are_read_as_they_are(compiled: dict[str, dict[str, int]]) -> None:
    plain = {name: figures for name, figures in compiled.items() if name.startswith("plain")}
    assert plain
    for name, figures in plain.items():
        # A compiler may keep a word or two for the end on the stack; of a tile it would be 16 words and more.
        assert figures["stack"] <= 16, name
        assert figures["local"] == 0, name
        assert figures["spills"] <= 4, name


def test_a_processor_has_enough_logits_under_way(compiled: dict[str, dict[str, int]]) -> None:
    for name, figures in scans(compiled):
        threads = min(REGISTERS_OF_A_PROCESSOR // figures["registers"], THREADS_OF_A_PROCESSOR)
        programs = threads // (32 * figures["warps"])
        # 4.8 TB/s for 0.8 us is 29 KB on each of 132 processors; twice that where nothing but the read takes time.
        assert programs * figures["tile_bytes"] >= (60_000 if name.startswith("plain") else 29_000), name


def test_logits_are_loaded_16_bytes_at_a_time(compiled: dict[str, dict[str, int]]) -> None:
    for name, figures in scans(compiled):
        vectors = figures["tile_bytes"] // 16 // (32 * figures["warps"])
        assert figures["wide_loads"] >= 2 * vectors, name  # with a mask and without
        assert figures["narrow_loads"] <= 2, name  # at the end, of the last token's vector and one draft logit
