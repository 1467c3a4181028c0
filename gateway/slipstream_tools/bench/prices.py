"""What an answer costs: the price of the servers that gave it, for its share of their time."""

from __future__ import annotations

import msgspec
from slipstream_core.types import Arm

from slipstream_tools.bench.results import Row

_HOUR_S = 3600.0


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Per GPU-hour, by arm; None where unknown."""

    plain: float | None = None
    speculative: float | None = None

    @property
    def known(self) -> bool:
        return self.plain is not None and self.speculative is not None

    def cost(self, row: Row) -> float:
        """The cost of a whole answer, at a price of 1 where none is known: at concurrency c, c requests share the
        servers, so that each is charged the c-th part of its time."""
        price = self.speculative if row.arm == Arm.SPECULATIVE else self.plain
        hours = (row.e2e_s or 0.0) / row.concurrency / _HOUR_S
        return hours * (price if self.known and price is not None else 1.0)

    def by_arm(self) -> dict[str, float]:
        """As a summary shows them; empty where unknown."""
        if self.plain is None or self.speculative is None:
            return {}
        return {"plain": self.plain, "speculative": self.speculative}
