"""What a caller may use, and what one request takes of it: the values that limits are made of. Pure.

Rates follow the generic cell rate algorithm (GCRA, ITU-T I.371; as in Cell, Stripe's and Envoy's limiters): the whole
state of a rate is one instant, the theoretical arrival time, up to which what was granted lasts at the regular rate.
A rate of L a minute has room for L at once, and never grants more than L + L·w/60 in any w seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

NANO_PER_USD = 1_000_000_000
US_PER_S = 1_000_000
US_PER_MINUTE = 60 * US_PER_S
DAY_S = 86_400


class LimitName(StrEnum):
    """The limits of a caller, by their names in the file of keys."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENT = "concurrent"
    BUDGET = "usd_per_day"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A caller's limits; None: there is none. Tokens are those of prompts and answers together, days are UTC's."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_day: float | None = None

    @property
    def is_open(self) -> bool:
        return self == NO_LIMITS


NO_LIMITS = Limits()


class Charge(NamedTuple):
    """What a request is expected to take; its real use corrects it. Each of its choices takes one of the `places`.
    `output_tokens` and `output_nano_usd` are the part of `tokens` and `nano_usd` that its answers may take."""

    tokens: int = 0
    nano_usd: int = 0
    places: int = 1
    output_tokens: int = 0
    output_nano_usd: int = 0

    def fitted(self, tokens: float | None, nano_usd: float | None) -> Charge:
        """The charge under limits of `tokens` and `nano_usd`, None: without. Answers that may take more than a whole
        limit are charged as much as fits, as most are shorter than they may be; prompts never."""
        return self._replace(
            tokens=_fitted(self.tokens, self.output_tokens, tokens),
            nano_usd=_fitted(self.nano_usd, self.output_nano_usd, nano_usd),
        )


class Room(NamedTuple):
    """How a rate stands: what is left of `limit` now, and how long until all of it is back."""

    limit: int
    remaining: int
    reset_s: float


class Grant(NamedTuple):
    """What an admitted request holds. `tokens_until_us` is the instant up to which the token rate was used after it,
    by the clock of whoever granted it; see `refund_us`. `day` is the one whose budget was charged. `shared`: the
    replicas decided, not this process alone. `charged` is what was taken of the limits."""

    lease: str = ""
    requests: Room | None = None
    tokens: Room | None = None
    tokens_until_us: int = 0
    day: int = 0
    shared: bool = False
    charged: Charge = Charge()


class Refusal(NamedTuple):
    """Why a request is not admitted. `retry_after_s` None: it is larger than the limit itself."""

    limit: LimitName
    retry_after_s: float | None
    requests: Room | None = None
    tokens: Room | None = None


class InUse(NamedTuple):
    """What a caller uses of its limits at a moment: what its rates have not worked off yet, the choices that run, and
    what was spent today (UTC)."""

    requests: float = 0.0
    tokens: float = 0.0
    concurrent: int = 0
    nano_usd: int = 0

    def plus(self, other: InUse) -> InUse:
        return InUse(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.concurrent + other.concurrent,
            self.nano_usd + other.nano_usd,
        )


class Use(NamedTuple):
    """A finished request: what it was charged and what it took."""

    key_id: str
    limits: Limits
    grant: Grant
    charged: Charge
    taken: Charge


def _fitted(amount: int, cuttable: int, limit: float | None) -> int:
    return amount if limit is None or amount <= limit else max(int(limit), amount - cuttable)


def interval_us(per_minute: int) -> float:
    """The time that one of `per_minute` takes at the regular rate."""
    return US_PER_MINUTE / per_minute


def used(per_minute: int | None, ahead_us: float) -> float:
    """How many of `per_minute` a rate has not worked off that is used up to `ahead_us` from now; None: no such rate."""
    return 0.0 if per_minute is None else max(ahead_us, 0.0) / interval_us(per_minute)


def refund_us(excess_us: float, granted_until_us: float, now_us: float) -> float:
    """How much of a charge that was `excess_us` too high may be taken back.

    What the rate has worked off since cannot be: it may have stood idle without that charge, so that giving it back
    would grant more than the rate. What lies ahead of now of all that stood at the charge is safe.
    """
    return max(0.0, min(excess_us, granted_until_us - now_us))
