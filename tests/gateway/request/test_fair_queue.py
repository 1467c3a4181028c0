"""Whose turn it is: nobody is forgotten, keys take turns, priorities go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.types import Priority
from slipstream_gateway.admission.fair_queue import Entry, FairQueue

PRIORITIES = tuple(Priority)
KEYS = st.sampled_from("abcd")


def drain(queue: FairQueue[tuple[str, int]]) -> list[tuple[str, int]]:
    served = []
    while (item := queue.pop()) is not None:
        served.append(item)
    return served


@given(st.lists(KEYS, max_size=60))
def test_keys_that_wait_together_take_turns_and_each_is_served_in_order(keys: list[str]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number, key in enumerate(keys):
        queue.push((key, number), priority=Priority.NORMAL, key=key)
    served = drain(queue)
    assert sorted(served) == sorted((key, number) for number, key in enumerate(keys))
    left = {key: keys.count(key) for key in keys}
    turns = dict.fromkeys(keys, 0)
    for key, number in served:
        turns[key] += 1
        left[key] -= 1
        assert number == [at for at, name in enumerate(keys) if name == key][turns[key] - 1]
        for other in turns:  # of two that both still wait, neither is more than one turn ahead
            assert not (left[key] and left[other]) or abs(turns[key] - turns[other]) <= 1


def test_a_key_that_floods_delays_another_by_one_turn() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number in range(500):
        queue.push(("flood", number), priority=Priority.NORMAL, key="flood")
    for _ in range(100):
        queue.pop()
    queue.push(("quiet", 0), priority=Priority.NORMAL, key="quiet")
    assert ("quiet", 0) in (queue.pop(), queue.pop())


@given(
    st.lists(st.tuples(st.sampled_from(PRIORITIES), KEYS), max_size=40),
    st.integers(0, 10),
    st.sampled_from(PRIORITIES),
    KEYS,
)
def test_entries_ahead_are_those_that_are_served_before(
    pushed: list[tuple[Priority, str]], popped: int, priority: Priority, key: str
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number, (rank, name) in enumerate(pushed):
        queue.push((name, number), priority=rank, key=name)
    for _ in range(popped):
        queue.pop()
    ahead = queue.ahead(priority, key)
    queue.push(("new", 0), priority=priority, key=key)
    assert drain(queue).index(("new", 0)) == ahead


@given(st.lists(st.tuples(st.sampled_from(PRIORITIES), KEYS), max_size=40))
def test_higher_priorities_go_first(pushed: list[tuple[Priority, str]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for priority, key in pushed:
        queue.push((key, PRIORITIES.index(priority)), priority=priority, key=key)
    ranks = [rank for _, rank in drain(queue)]
    assert ranks == sorted(ranks)


@given(
    st.lists(st.tuples(st.sampled_from(("push", "pop", "discard")), st.sampled_from(PRIORITIES), KEYS), max_size=200)
)
def test_each_entry_leaves_once_whatever_is_discarded(steps: list[tuple[str, Priority, str]]) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, Entry[int]] = {}
    for number, (what, priority, key) in enumerate(steps):
        if what == "push":
            waiting[number] = queue.push(number, priority=priority, key=key)
        elif what == "pop":
            item = queue.pop()
            assert (item is None) == (not waiting)
            if item is not None:
                del waiting[item]
        elif waiting:
            entry = waiting.pop(min(waiting))
            queue.discard(entry)
            queue.discard(entry)
        assert len(queue) == len(waiting)
    assert {queue.pop() for _ in range(len(waiting))} == set(waiting)
    assert queue.pop() is None


def test_the_newest_of_the_longest_line_of_the_lowest_priority_gives_way() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.push(f"flood {number}", priority=Priority.NORMAL, key="flood")
    victim = queue.victim(Priority.NORMAL, "quiet")
    assert victim is not None
    assert victim.item == "flood 2"
    assert queue.victim(Priority.NORMAL, "flood") is None  # its own line is the longest: it gives way itself
    assert queue.victim(Priority.LOW, "quiet") is None
    for number in range(2):
        queue.push(f"other {number}", priority=Priority.NORMAL, key="other")
    assert queue.victim(Priority.NORMAL, "other") is None  # both lines would be equally long
    queue.push("low", priority=Priority.LOW, key="quiet")
    lowest = queue.victim(Priority.NORMAL, "flood")
    assert lowest is not None
    assert lowest.item == "low"


def test_an_entry_that_is_discarded_uses_no_turn_of_its_key() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a 0", priority=Priority.NORMAL, key="a")
    queue.discard(queue.push("a 1", priority=Priority.NORMAL, key="a"))
    for number in range(3):
        queue.push(f"b {number}", priority=Priority.NORMAL, key="b")
    queue.push("a 2", priority=Priority.NORMAL, key="a")
    assert drain(queue) == ["a 0", "b 0", "b 1", "a 2", "b 2"]


def test_a_key_that_was_served_waits_for_its_next_turn_also_among_many_keys() -> None:
    queue: FairQueue[str] = FairQueue()
    keys = ["x", "y", *(f"k{number}" for number in range(300))]
    for key in (*keys, "x", "y"):
        queue.push(key, priority=Priority.NORMAL, key=key)
    assert [queue.pop() for _ in keys] == keys
    for key in ("new", "k0"):
        queue.push(key, priority=Priority.NORMAL, key=key)
    assert drain(queue) == ["new", "x", "y", "k0"]
