"""A watch that brings nothing any more is found out by lists."""

from __future__ import annotations

from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.resync import PROOF_WITHIN_S, WatchProof


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def key(name: str, kind: Kind = Kind.SERVICE) -> ObjectKey:
    return ObjectKey(kind, "ns", name)


def miss(proof: WatchProof, clock: Clock, *keys: ObjectKey) -> None:
    proof.expect(keys)
    clock.now_s += PROOF_WITHIN_S + 1
    proof.look()


def test_watch_that_brings_what_lists_bring_is_well() -> None:
    proof = WatchProof(clock_s=(clock := Clock()))
    for _ in range(3):
        proof.expect([key("a")])
        clock.now_s += 1
        proof.seen(key("a"))
        clock.now_s += PROOF_WITHIN_S
        proof.look()
    assert proof.deaf() == []
    assert proof.missed(Kind.SERVICE) == 0


def test_watch_that_misses_again_and_again_is_deaf() -> None:
    proof = WatchProof(clock_s=(clock := Clock()))
    miss(proof, clock, key("a"), key("b"))
    assert proof.deaf() == []  # once may be a deletion while the watch began anew
    miss(proof, clock, key("c"))
    assert proof.deaf() == [Kind.SERVICE]
    assert proof.missed(Kind.SERVICE) == 3


def test_watch_that_brings_anything_between_is_not_deaf() -> None:
    proof = WatchProof(clock_s=(clock := Clock()))
    miss(proof, clock, key("a"))
    proof.seen(key("z"))
    miss(proof, clock, key("b"))
    assert proof.deaf() == []


def test_each_kind_has_a_watch_of_its_own() -> None:
    proof = WatchProof(clock_s=(clock := Clock()))
    for name in "ab":
        proof.seen(key("x", Kind.CONFIG_MAP))
        miss(proof, clock, key(name))
    assert proof.deaf() == [Kind.SERVICE]
