"""The limits of a caller, and the charge of one request. Pure.

Rates follow the generic cell rate algorithm (GCRA, ITU-T I.371; as in Cell, Stripe's and Envoy's limiters): the whole
state of a rate is one instant, the theoretical arrival time, up to which the granted amount lasts at the regular rate.
A rate of L per minute permits a burst of L, and never grants more than L + L·w/60 in any w seconds.
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
    """The limits of a caller, by their names in the key file."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENT = "concurrent"
    BUDGET = "usd_per_day"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A caller's limits; None: no limit. Tokens are those of prompts and answers together, days are in UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_day: float | None = None

    @property
    def is_open(self) -> bool:
        return self == NO_LIMITS

    @property
    def nano_usd_per_day(self) -> int | None:
        """The budget in billionths of a USD, at least one."""
        return None if self.usd_per_day is None else max(1, round(self.usd_per_day * NANO_PER_USD))

    def divided(self, parts: int) -> Limits:
        """The limits of one of `parts` processes. A small limit is not divided below one."""
        if parts == 1:
            return self
        rpm, tpm, places = (
            None if limit is None else max(1, limit // parts)
            for limit in (self.requests_per_minute, self.tokens_per_minute, self.concurrent)
        )
        usd = None if self.usd_per_day is None else self.usd_per_day / parts
        return Limits(requests_per_minute=rpm, tokens_per_minute=tpm, concurrent=places, usd_per_day=usd)


NO_LIMITS = Limits()


class Charge(NamedTuple):
    """The expected usage of a request, corrected later to the real one. Each of its choices takes one of the `places`.
    `output_tokens` and `output_nano_usd` are the part of `tokens` and `nano_usd` for its answers."""

    tokens: int = 0
    nano_usd: int = 0
    places: int = 1
    output_tokens: int = 0
    output_nano_usd: int = 0

    def fitted(self, limits: Limits) -> Charge:
        """The charge under `limits`. Answers that may exceed a whole limit are charged as much as fits, because most
        are shorter than their maximum; prompts never."""
        return self._replace(
            tokens=_fitted(self.tokens, self.output_tokens, limits.tokens_per_minute),
            nano_usd=_fitted(self.nano_usd, self.output_nano_usd, limits.nano_usd_per_day),
        )


class Room(NamedTuple):
    """The state of a rate: the remainder of `limit` now, and the time until it is fully restored."""

    limit: int
    remaining: int
    reset_s: float


class Grant(NamedTuple):
    """The grant of an admitted request. `tokens_until_us` is the instant up to which the token rate was used after it,
    by the clock of the granting side; see `refund_us`. `day` is the one whose budget was charged. `shared`: granted by
    the replicas together, not by this process alone. `charged` is the amount taken of the limits."""

    lease: str = ""
    requests: Room | None = None
    tokens: Room | None = None
    tokens_until_us: int = 0
    day: int = 0
    shared: bool = False
    charged: Charge = Charge()


class Refusal(NamedTuple):
    """The reason why a request is not admitted. `retry_after_s` None: it exceeds the limit itself."""

    limit: LimitName
    retry_after_s: float | None
    requests: Room | None = None
    tokens: Room | None = None


class InUse(NamedTuple):
    """The present usage of a caller's limits: the used part of its rates, its running choices, and its spending of
    today (UTC)."""

    requests: float = 0.0
    tokens: float = 0.0
    concurrent: int = 0
    nano_usd: int = 0


class Use(NamedTuple):
    """A finished request: its charge and its real usage."""

    key_id: str
    limits: Limits
    grant: Grant
    charged: Charge
    taken: Charge


def _fitted(amount: int, cuttable: int, limit: int | None) -> int:
    return amount if limit is None or amount <= limit else max(limit, amount - cuttable)


def interval_us(per_minute: int) -> float:
    """The time that one of `per_minute` takes at the regular rate."""
    return US_PER_MINUTE / per_minute


def used(per_minute: int | None, ahead_us: float) -> float:
    """The used part of a rate of `per_minute` that is used up to `ahead_us` from now; None: no such rate."""
    return 0.0 if per_minute is None else max(ahead_us, 0.0) / interval_us(per_minute)


def room(per_minute: int | None, ahead_us: float, *, rounding: float = 1e-6) -> Room | None:
    """The state of a rate of `per_minute` that is used up to `ahead_us` from now; None: no such rate. A remainder that
    lacks `rounding` of a whole number is that number."""
    if per_minute is None:
        return None
    ahead_us = max(ahead_us, 0.0)
    remaining = int((US_PER_MINUTE - ahead_us) / interval_us(per_minute) + rounding)
    return Room(per_minute, max(0, remaining), ahead_us / US_PER_S)


def refund_us(excess_us: float, granted_until_us: float, now_us: float) -> float:
    """The refundable part of a charge that was `excess_us` too high.

    The part that has elapsed since then is not refundable: without the charge the rate might have been idle, so that a
    refund would exceed the rate. Any part that is still ahead of now is safe to refund.
    """
    return max(0.0, min(excess_us, granted_until_us - now_us))
