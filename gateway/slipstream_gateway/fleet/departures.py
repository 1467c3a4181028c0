"""Models that were removed while clients used them. A gateway cannot refuse the deletion of a pair, so it logs it."""

from __future__ import annotations

import logging

from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import Snapshot

_log = logging.getLogger(__name__)


class Departures:
    """Logs and counts the model names that a new table lacks although their pair had requests recently."""

    def __init__(self, fleet: Fleet) -> None:
        self.count = 0
        self._use = fleet.use
        fleet.on_swap(self._swapped)

    def _swapped(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        routes = previous.routes if previous is not None else {}
        gone = routes.keys() - snapshot.routes.keys()
        if not gone:
            return
        used = self._use.lately()
        for model in sorted(gone):
            pair = routes[model].route.pair.metadata.key
            if pair in used:
                self.count += 1
                running = self._use.running(pair)
                _log.warning(
                    "the model %s of pair %s is gone though clients use it: %d requests run on, new ones get 404",
                    model,
                    pair,
                    running,
                )
