"""Which positions of the draft model's cache are known to be complete."""

from __future__ import annotations

from slipstream_vllm.draft_cache import DraftCache

BLOCKS = [7, 3, 9, 5]
SIZE = 4


def test_every_step_drafted_leaves_nothing_to_do() -> None:
    cache = DraftCache(SIZE)
    assert cache.complete_until("a", BLOCKS, 0) == 0
    cache.write("a", BLOCKS, 0, 6, drafted=True)
    assert cache.complete_until("a", BLOCKS, 6) == 6
    cache.write("a", BLOCKS, 6, 11, drafted=True)
    assert cache.complete_until("a", BLOCKS, 8) >= 8  # two of five tokens were accepted


def test_a_plain_stretch_is_missing_until_it_is_filled() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 5, drafted=True)
    for start in range(5, 9):
        cache.complete_until("a", BLOCKS, start)
        cache.write("a", BLOCKS, start, start + 1, drafted=False)
    assert cache.complete_until("a", BLOCKS, 9) == 5
    cache.write("a", BLOCKS, 9, 10, drafted=True)  # drafted for a neighbour; the hole stays
    assert cache.complete_until("a", BLOCKS, 10) == 5
    cache.fill("a", BLOCKS, 5, 10)
    assert cache.complete_until("a", BLOCKS, 10) == 10


def test_a_prefix_hit_is_complete_as_far_as_its_blocks_are() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 8, drafted=True)
    cache.complete_until("a", BLOCKS, 8)
    cache.write("a", BLOCKS, 8, 12, drafted=False)
    cache.forget(["a"])
    assert cache.complete_until("b", BLOCKS, 12) == 8
    assert cache.complete_until("c", [7, 3, 11], 8) == 8
    assert cache.complete_until("d", [11, 3], 8) == 0


def test_a_block_that_is_written_anew_is_not_complete() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 8, drafted=True)
    cache.forget(["a"])
    cache.complete_until("b", [3], 0)
    cache.write("b", [3], 0, 4, drafted=False)
    assert cache.complete_until("c", [7, 3], 8) == 4


def test_a_resumed_request_starts_over() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 7, drafted=True)
    cache.forget(["a"])
    assert cache.complete_until("a", [1, 2], 0) == 0
    cache.write("a", [1, 2], 0, 7, drafted=False)
    assert cache.complete_until("a", [1, 2], 7) == 0
