"""Which positions of the draft model's cache are known to be complete."""

from __future__ import annotations

from slipstream_vllm.draft_cache import DraftCache

BLOCKS = [7, 3, 9, 5]
SIZE = 4


def test_every_step_drafted_leaves_nothing_to_do() -> None:
    cache = DraftCache(SIZE)
    assert cache.complete_until("a", BLOCKS, 0) == 0
    cache.write("a", BLOCKS, 0, 6, drafted=True)
    assert cache.complete_until("a", BLOCKS, 6) >= 6
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


def test_rejected_then_plain_leaves_what_was_rejected_missing() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 6, drafted=True)
    cache.complete_until("a", BLOCKS, 6)
    cache.write("a", BLOCKS, 6, 11, drafted=True)  # four drafts, all rejected
    for start in range(7, 12):
        cache.complete_until("a", BLOCKS, start)
        cache.write("a", BLOCKS, start, start + 1, drafted=False)
    assert cache.complete_until("a", BLOCKS, 12) == 7
    cache.forget(["a"])
    assert cache.complete_until("b", BLOCKS, 12) == 4  # the first block only: the second has rejected positions


def test_a_drafted_step_after_a_rejection_is_complete() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 6, drafted=True)
    cache.complete_until("a", BLOCKS, 6)
    cache.write("a", BLOCKS, 6, 11, drafted=True)
    cache.complete_until("a", BLOCKS, 7)
    cache.write("a", BLOCKS, 7, 12, drafted=True)
    cache.forget(["a"])
    assert cache.complete_until("b", BLOCKS, 12) == 12


def test_requests_of_one_step_share_what_the_first_one_fills() -> None:
    """A prefix hit on blocks that are written in the same step: each step is noted before the drafter runs."""
    cache = DraftCache(SIZE)
    rows = (("a", BLOCKS, 0, 9), ("b", [7, 3, 11], 8, 10))
    for name, blocks, start, stop in rows:
        cache.write(name, blocks, start, stop, drafted=False)
    for name, blocks, start, stop in rows:
        assert cache.complete_until(name, blocks, start) == start
        cache.write(name, blocks, start, stop, drafted=True)


def test_a_request_that_never_drafted_is_looked_up_by_its_blocks() -> None:
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 8, drafted=True)
    for start in range(4, 7):  # "b" has the first block of "a" and then its own
        cache.write("b", [7, 9], start, start + 1, drafted=False)
    assert cache.complete_until("b", [7, 9], 7) == 4


def test_positions_that_only_grow_by_lower_bounds_fill_their_blocks() -> None:
    """Four drafts were accepted in the step at 5, which the host learns two steps later."""
    cache = DraftCache(SIZE)
    cache.complete_until("a", BLOCKS, 0)
    cache.write("a", BLOCKS, 0, 5, drafted=True)
    cache.write("a", BLOCKS, 5, 6, drafted=True, most=10)
    cache.write("a", BLOCKS, 10, 11, drafted=True, most=11)
    assert cache.complete_until("b", [7, 3, 9], 12) == 8
    cache.write("a", BLOCKS, 11, 12, drafted=False, most=16)
    assert cache.complete_until("a", BLOCKS, 16) == 11
    assert cache.complete_until("c", [7, 3, 9, 5], 16) == 8
