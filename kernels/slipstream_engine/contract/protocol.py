"""What an engine reports of itself, and how it delivers its results."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from slipstream_engine.contract.types import Chunk

MOST_STANDINGS = 256
OnChunk = Callable[[Chunk], None]


class DraftStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine knows of one of its drafts for the requests of a group.

    `state` is "promoted", "undecided" or "taken_back". `answers` is the number of answers with this draft. Old
    answers fade. `seconds_per_token` is the engine time, None before the first answer.
    """

    group: str
    draft: str
    state: str
    answers: int
    seconds_per_token: float | None


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Name and capabilities of an engine.

    `max_draft_length` is 0 without speculation. `fingerprint` identifies all that determines an answer besides the
    request and its seed: engines with one fingerprint give equal answers at every draft length, up to rounding in half
    precision. `drafts` are the names of its drafts if it has several. `draft_standings`: what it knows of them, at most
    `MOST_STANDINGS`.
    """

    engine: str
    max_draft_length: int
    context_tokens: int
    fingerprint: str
    drafts: tuple[str, ...] = ()
    draft_standings: tuple[DraftStanding, ...] = ()
