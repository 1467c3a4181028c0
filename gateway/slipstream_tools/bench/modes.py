"""Modes that a bench compares: plain, speculative, speculative:N and routed, and what tells the gateway of them."""

from __future__ import annotations

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.manifest.objects import MAX_DRAFT_TOKENS
from slipstream_core.types import Arm

PLAIN, SPECULATIVE, ROUTED = "plain", "speculative", "routed"


class BenchMode(msgspec.Struct, frozen=True, kw_only=True):
    """One mode. `draft_length` is None where the policy's is taken."""

    name: str
    arm: Arm | None
    draft_length: int | None = None

    def headers(self, *, learn: bool) -> dict[str, str]:
        """Request headers. Only routed traffic that `learn`s teaches the gateway: forced arms would tell it things
        that its own decisions never would have."""
        headers: dict[str, str] = {}
        if self.arm is not None:
            headers["x-slipstream-mode"] = str(self.arm)
        if self.draft_length is not None:
            headers["x-slipstream-draft-length"] = str(self.draft_length)
        if self.arm is not None or not learn:
            headers["x-slipstream-learn"] = "off"
        return headers

    def refusal(self, arm: str | None, draft_length: int | None, reason: str | None) -> str | None:
        """Why an answer by `arm` with `draft_length` is not in this mode; None where it is."""
        if self.arm is None:
            return None if arm else "the answer names no arm"
        if arm != self.arm:
            return f"asked for the {self.arm} arm, answered by {arm or 'a server that names none'} ({reason})"
        if self.draft_length is not None and draft_length != self.draft_length:
            return f"asked for draft length {self.draft_length}, answered with {draft_length} ({reason})"
        return None


def parse_modes(text: str) -> tuple[BenchMode, ...]:
    """Modes from a list with commas, in its order. Raises `CommandError`."""
    modes = tuple(parse_mode(part.strip()) for part in text.split(","))
    names = [mode.name for mode in modes]
    for name in names:
        if names.count(name) > 1:
            raise CommandError(f"--modes has {name!r} twice", exit_code=2)
    return modes


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
