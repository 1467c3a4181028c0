"""Lists reveal a watch that delivers nothing any more."""

from __future__ import annotations

from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.handlers.resync import PROOF_WITHIN_S, WatchCheck

from tests.support.clock import Clock


def key(name: str, kind: Kind = Kind.SERVICE) -> ObjectKey:
    return ObjectKey(kind, "ns", name)


def miss(check: WatchCheck, clock: Clock, *keys: ObjectKey) -> None:
    check.expect(keys)
    clock.now_s += PROOF_WITHIN_S + 1
    check.look()


def test_watch_that_brings_what_lists_bring_is_well() -> None:
    check = WatchCheck(clock_s=(clock := Clock()))
    for _ in range(3):
        check.expect([key("a")])
        clock.now_s += 1
        check.seen(key("a"))
        clock.now_s += PROOF_WITHIN_S
        check.look()
    assert check.dead_watches() == []
    assert check.missed(Kind.SERVICE) == 0


def test_watch_that_misses_again_and_again_is_dead() -> None:
    check = WatchCheck(clock_s=(clock := Clock()))
    miss(check, clock, key("a"), key("b"))
    assert check.dead_watches() == []  # once may be a deletion while the watch began anew
    miss(check, clock, key("c"))
    assert check.dead_watches() == [Kind.SERVICE]
    assert check.missed(Kind.SERVICE) == 3


def test_watch_that_brings_anything_between_is_not_dead() -> None:
    check = WatchCheck(clock_s=(clock := Clock()))
    miss(check, clock, key("a"))
    check.seen(key("z"))
    miss(check, clock, key("b"))
    assert check.dead_watches() == []


def test_each_kind_has_a_watch_of_its_own() -> None:
    check = WatchCheck(clock_s=(clock := Clock()))
    for name in "ab":
        check.seen(key("x", Kind.CONFIG_MAP))
        miss(check, clock, key(name))
    assert check.dead_watches() == [Kind.SERVICE]
