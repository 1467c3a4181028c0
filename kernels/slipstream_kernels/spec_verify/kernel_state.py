"""A request's state word, int64: bit j: draft j is accepted; bit 32 + j: the request ends in row j or before it."""

from __future__ import annotations

import triton
import triton.language as tl

ENDS = tl.constexpr(32)
"""Index of the first end bit in `state`."""


@triton.jit
def current(states, request):
    """The current state of `request`, the same for all threads, while other programs may set bits.

    With a load, threads could see different values, diverge at the next branch and deadlock at a barrier inside it. An
    atomic operation is performed once, and its result is broadcast to all threads.
    """
    return tl.atomic_or(states + request, tl.full([], 0, tl.int64), sem="relaxed", scope="gpu")


@triton.jit
def ends_before(state, j):
    """Whether `state` has an end before row `j`."""
    return ((state >> ENDS) & ((tl.full([], 1, tl.int64) << j) - 1)) != 0


@triton.jit
def first_open(state):
    """The lowest row without an accepted bit, as a bit, int64."""
    return (state ^ (state + 1)) & ~state & 0xFFFFFFFF


@triton.jit
def is_resolved(state):
    """Whether the request's terminal row is known: the lowest row that is not accepted has an end bit."""
    return ((state >> ENDS) & first_open(state)) != 0
