"""A request's state word, int64: bit j, draft j is accepted; bit 32 + j, the request ends in row j or before it."""

from __future__ import annotations

import triton
import triton.language as tl

ENDS = tl.constexpr(32)
"""Bit of `state` at which the ends begin."""


@triton.jit
def current(states, request):
    """The state of `request` as it is now, while other programs may set bits, the same for all threads.

    A load would be made by each thread. Threads that saw different values would part at the next branch, and wait for
    each other forever at a barrier inside: an atomic operation is made once, and its result handed to all.
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
    """Whether the request's last row is known: the lowest row that is not accepted is an end."""
    return ((state >> ENDS) & first_open(state)) != 0
