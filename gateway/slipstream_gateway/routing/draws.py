"""Chance by request id: the same request gets the same draws in every gateway, and nothing has to be remembered."""

from __future__ import annotations

import struct
from hashlib import blake2b

from slipstream_gateway.measurement import Draws

_unpack, _unpack_one = struct.Struct("<4I").unpack, struct.Struct("<I").unpack
_SCALE = 2.0**-32
_NEVER = 1.0 - 2.0**-53  # the largest draw there is: below a share of 1 alone

NO_DRAWS = Draws(hold_back=_NEVER, exploration=_NEVER, draft_length=_NEVER, parity=_NEVER, rollout=_NEVER)
"""For a decision that chance has no part in: no share below 1 applies."""


def draws_of(request_id: str) -> Draws:
    """The draws of a request. Each is a part of its own of one hash, or a hash of its own, so that none tells anything
    of another."""
    text = request_id.encode("utf-8", "surrogatepass")
    hold_back, exploration, draft_length, parity = _unpack(blake2b(text, digest_size=16).digest())
    # A longer digest would be another hash, and would change the four draws that every request has had so far.
    (rollout,) = _unpack_one(blake2b(text, digest_size=4, person=b"rollout").digest())
    return Draws(
        hold_back=hold_back * _SCALE,
        exploration=exploration * _SCALE,
        draft_length=draft_length * _SCALE,
        parity=parity * _SCALE,
        rollout=rollout * _SCALE,
    )
