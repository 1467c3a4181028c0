"""Draws that a test chooses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from slipstream_core.observation import Draws
from slipstream_gateway.decide.route import NO_DRAWS, fresh_draws


def draws_of(name: str) -> Draws:
    """Draws by chance, the same for the same name."""
    return fresh_draws(Random(name).randbytes)


def chosen_draws(**values: Any) -> Draws:
    """The largest draws, to which only shares of 1 apply, but for `values`."""
    largest = NO_DRAWS.hold_back
    return msgspec.structs.replace(NO_DRAWS, **{"parity": largest, "canary": largest, **values})


def by_turns(*draws: Draws) -> Callable[[], Draws]:
    """A gateway's draws: each of `draws` in its turn, again and again."""
    return itertools.cycle(draws).__next__
