"""Random draws derived from the request id: all gateways with the same secret get the same draws, without stored
state."""

from __future__ import annotations

import struct
from hashlib import blake2b

from slipstream_core.observation import Draws

_FORMAT = struct.Struct("<5I")
_unpack = _FORMAT.unpack
_ONE = struct.Struct("<I")
_SCALE = 2.0**-32
_NEVER = 1.0 - 2.0**-53  # the largest possible draw: only below a share of 1

NO_DRAWS = Draws(hold_back=_NEVER, exploration=_NEVER, draft_length=_NEVER, parity=_NEVER, rollout=_NEVER)
"""For a decision without random draws: no share below 1 applies."""


class RequestDraws:
    """The draws of requests under a secret. Clients choose their ids; without the secret they cannot compute the draws
    of an id."""

    def __init__(self, secret: bytes) -> None:
        # Each draw is a separate part of one digest, so that the draws are independent.
        self._keyed = blake2b(digest_size=_FORMAT.size, key=blake2b(secret, person=b"request draws").digest())
        self._canary = blake2b(digest_size=_ONE.size, key=blake2b(secret, person=b"canary draws").digest())
        self._capture = blake2b(digest_size=_ONE.size, key=blake2b(secret, person=b"capture draws").digest())

    def of(self, request_id: str) -> Draws:
        """Copies the keyed hash, which takes half the time of a new one: 1.4 µs in total (one core, one run)."""
        keyed = self._keyed.copy()
        keyed.update(request_id.encode("utf-8", "surrogatepass"))
        hold_back, exploration, draft_length, parity, rollout = _unpack(keyed.digest())
        return Draws(
            hold_back=hold_back * _SCALE,
            exploration=exploration * _SCALE,
            draft_length=draft_length * _SCALE,
            parity=parity * _SCALE,
            rollout=rollout * _SCALE,
        )

    def canary(self, request_id: str) -> float:
        """The draw for a new revision, independent of the others, and computed only while there is one."""
        return _uniform(self._canary, request_id)

    def capture(self, request_id: str) -> float:
        """The draw for capture, likewise."""
        return _uniform(self._capture, request_id)


def _uniform(key: blake2b, request_id: str) -> float:
    keyed = key.copy()
    keyed.update(request_id.encode("utf-8", "surrogatepass"))
    return float(_ONE.unpack(keyed.digest())[0] * _SCALE)
