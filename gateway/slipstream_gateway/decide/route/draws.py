"""The random draws of a request, from the gateway's own randomness.

Nothing that a client sends has an effect on a draw, so that a client cannot choose which of its requests are the
control: neither by request ids of its own, nor by sending an id again. An explained decision has no draws.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from slipstream_core.manifest import Route
from slipstream_core.observation import Draws
from slipstream_core.random_bytes import random_bytes
from slipstream_core.types import GenerationRequest

_FORMAT = struct.Struct("<6I")
_unpack = _FORMAT.unpack
_SCALE = 2.0**-32
_NEVER = 1.0 - 2.0**-53  # the largest possible draw: only below a share of 1

NO_DRAWS = Draws(hold_back=_NEVER, exploration=_NEVER, draft_length=_NEVER, parity=1.0, rollout=_NEVER, canary=1.0)
"""For a decision without random draws: no share below 1 applies. A request that is only explained, or kept out of all
comparisons, is never replayed and goes to no new revision, even at a share of 1."""


def fresh_draws(take: Callable[[int], bytes] = random_bytes) -> Draws:
    """New draws from the random bytes of `take`."""
    hold_back, exploration, draft_length, parity, rollout, canary = _unpack(take(_FORMAT.size))
    return Draws(
        hold_back=hold_back * _SCALE,
        exploration=exploration * _SCALE,
        draft_length=draft_length * _SCALE,
        parity=parity * _SCALE,
        rollout=rollout * _SCALE,
        canary=canary * _SCALE,
    )


def opts_out(request: GenerationRequest, route: Route) -> bool:
    """Whether the client keeps `request` out of all comparisons. Its outcome is no evidence, so that it gets no draws
    either. Only clients that may choose the mode may do so."""
    return not request.learn and route.policy is not None and route.policy.spec.allow_client_mode
