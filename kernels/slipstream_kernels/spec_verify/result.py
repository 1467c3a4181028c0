"""The result of a verification."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PADDING = -1
"""Value of `token_ids` where no token was emitted."""


class Verification(NamedTuple):
    """Tokens that one step adds to each of B requests; K is the maximum number of drafted tokens.

    A request fails if a required row of the target's logits has no distribution: it contains NaN or +inf, or no value
    above -inf. A failed request emits no token and does not affect the other requests.
    """

    token_ids: Tensor
    """int64 [B, K + 1]: the accepted tokens, then the corrected or bonus token, then -1."""
    accepted: Tensor
    """int64 [B]: the number of accepted drafted tokens; -1 where the request failed."""
    lengths: Tensor
    """int64 [B]: the number of emitted tokens, `accepted` + 1; 0 where the request failed."""
