"""Modes that a bench compares, and the order in which requests run: every request in every mode, modes interleaved in
an order drawn from the seed.

At concurrency 1 the mode changes request by request. Above it the mode changes group by group: requests of two modes in
one batch would pay for each other, and neither would show what its mode costs at that load.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.manifest.model_pair import MAX_DRAFT_TOKENS
from slipstream_core.types import Arm

from slipstream_tools.bench.arrivals import Load
from slipstream_tools.bench.requests import BenchRequest
from slipstream_tools.bench.summary import PLAIN, ROUTED, SPECULATIVE


class BenchMode(msgspec.Struct, frozen=True, kw_only=True):
    """One mode. `draft_length` is None where the policy's is taken."""

    name: str
    arm: Arm | None
    draft_length: int | None = None

    def headers(self, *, learn: bool) -> dict[str, str]:
        """Request headers. Only routed requests with `learn` teach the gateway: forced arms give it outcomes that its
        own decisions would not."""
        headers: dict[str, str] = {}
        if self.arm is not None:
            headers["x-slipstream-mode"] = str(self.arm)
        if self.draft_length is not None:
            headers["x-slipstream-draft-length"] = str(self.draft_length)
        if self.arm is not None or not learn:
            headers["x-slipstream-learn"] = "off"
        return headers

    def refusal(self, arm: str | None, draft_length: int | None, reason: str | None) -> str | None:
        """The reason that an answer by `arm` with `draft_length` is not in this mode; None where it is."""
        if self.arm is None:
            return None if arm else "the answer names no arm"
        if arm != self.arm:
            return f"asked for the {self.arm} arm, answered by {arm or 'a server that names no arm'} ({reason})"
        if self.draft_length is not None and draft_length != self.draft_length:
            return f"asked for draft length {self.draft_length}, answered with {draft_length} ({reason})"
        return None


def parse_modes(text: str, draft_lengths: Sequence[int] = ()) -> tuple[BenchMode, ...]:
    """Modes from a comma-separated list, in its order; `speculative` becomes one for each of `draft_lengths`. Raises
    `CommandError`."""
    given = [parse_mode(part.strip()).name for part in text.split(",")]
    for name, count in Counter(given).items():
        if count > 1:
            raise CommandError(f"--modes has {name!r} twice", exit_code=2)
    if draft_lengths and SPECULATIVE not in given:
        raise CommandError("--draft-lengths needs the mode speculative", exit_code=2)
    fixed = [f"{SPECULATIVE}:{length}" for length in draft_lengths] or [SPECULATIVE]
    names = dict.fromkeys(mode for name in given for mode in (fixed if name == SPECULATIVE else [name]))
    return tuple(parse_mode(name) for name in names)


def parse_mode(name: str) -> BenchMode:
    """One mode by its name. Raises `CommandError`."""
    if name == PLAIN:
        return BenchMode(name=name, arm=Arm.PLAIN)
    if name == ROUTED:
        return BenchMode(name=name, arm=None)
    kind, colon, digits = name.partition(":")
    if kind == SPECULATIVE and not colon:
        return BenchMode(name=name, arm=Arm.SPECULATIVE)
    if kind == SPECULATIVE and digits.isascii() and digits.isdigit() and 1 <= int(digits[:4]) <= MAX_DRAFT_TOKENS:
        return BenchMode(name=f"{SPECULATIVE}:{int(digits)}", arm=Arm.SPECULATIVE, draft_length=int(digits))
    known = f"plain, routed, speculative, or speculative:N with N of 1 to {MAX_DRAFT_TOKENS}"
    raise CommandError(f"a mode is {known}, got {name!r}", exit_code=2)


GROUP_WAVES = 4
"""Requests of a group per concurrent client: enough to keep the load full for most of the group."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One request in one mode of one round."""

    request: BenchRequest
    mode: BenchMode
    round: int = 0


def plan(
    requests: Sequence[BenchRequest], modes: Sequence[BenchMode], *, load: Load, rounds: int, seed: int
) -> Iterator[list[Item]]:
    """The groups of one load: items of one mode that run together; the next group starts when they are done. In a
    closed loop `load` items run at a time. In an open loop a group has all requests. The same arguments give the same
    order."""
    order = random.Random(f"{seed}/{load}")
    size = len(requests) if isinstance(load, str) else 1 if load == 1 else load * GROUP_WAVES
    for number in range(rounds):
        for start in range(0, len(requests), size):
            for mode in order.sample(list(modes), len(modes)):
                yield [Item(request=one, mode=mode, round=number) for one in requests[start : start + size]]
