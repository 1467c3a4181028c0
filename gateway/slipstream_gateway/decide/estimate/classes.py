"""Expectations for a pair's requests without data of their own template: pair -> class. Each level is an offset from
the one above, with a variance that remains for the one below. Each API key has its own levels; between keys, only the
median of their estimates is shared."""

from __future__ import annotations

from slipstream_gateway.decide.estimate.class_acceptance import ClassAcceptance, SharedAcceptance
from slipstream_gateway.decide.estimate.class_lengths import ClassLengths, SharedLengths


class PairModel:
    """The data that the API keys of one model pair share."""

    def __init__(self) -> None:
        self.lengths = SharedLengths()
        self.acceptance = SharedAcceptance()


class KeyModel:
    """Expectations for one API key's requests to one model pair, above the level of fingerprints."""

    def __init__(self, key: str, pair: PairModel) -> None:
        self.hits = 0
        self.lengths = ClassLengths(key, pair.lengths)
        self.acceptance = ClassAcceptance(key, pair.acceptance)
