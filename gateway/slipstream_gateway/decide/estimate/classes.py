"""Expectations for a pair's requests without data of their own template: pair -> class -> words. Each level is an
offset from the one above, with a variance that remains for the one below. Each API key has its own levels; between
keys, only the median of their estimates and the words' weights are shared, within a limit."""

from __future__ import annotations

from slipstream_core.observation import Subject

from slipstream_gateway.decide.estimate.class_acceptance import ClassAcceptance, SharedAcceptance
from slipstream_gateway.decide.estimate.class_lengths import ClassLengths, SharedLengths
from slipstream_gateway.decide.estimate.pooled import SOURCE_CAP, PooledMean
from slipstream_gateway.decide.estimate.shrinkage import clipped

_MAX_CLASSES = 128
_PACE_CLIP = 1.0
# The number of observations at which half of a class's log ratio of times is trusted.
_PACE_SAMPLES = 4.0
# New templates may teach the words this many observations more than known ones do, once there are some known ones.
_NEW_LEAD, _SOME_KNOWN, _WINDOW = 50.0, 20.0, 2_000.0
_KNOWN_SAMPLES = 2.0
# After this many answers, a template's further information on similar ones is not worth the time.
_HEARD_SAMPLES = 8.0


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
        self._paces: dict[str, tuple[PooledMean, PooledMean]] = {}
        self._new = self._known = 0.0

    def pace(self, cold_class: str) -> tuple[float, float]:
        """The class's log ratios of step times to its servers' curves, plain and speculative, shrunk towards 0."""
        found = self._paces.get(cold_class)
        if found is None:
            return 0.0, 0.0
        plain, speculative = found
        return (
            plain.mean * plain.weight / (plain.weight + _PACE_SAMPLES),
            speculative.mean * speculative.weight / (speculative.weight + _PACE_SAMPLES),
        )

    def learn_pace(self, subject: Subject, member: str, log_ratio: float, weight: float, *, speculative: bool) -> None:
        """Records the ratio of a request's step time to the curve."""
        found = self._paces.get(subject.cold_class)
        if found is None:
            if len(self._paces) >= _MAX_CLASSES:
                self._forget_classes()
            found = self._paces[subject.cold_class] = (PooledMean(SOURCE_CAP), PooledMean(SOURCE_CAP))
        found[speculative].add(member, clipped(log_ratio, _PACE_CLIP), weight)

    def may_teach(self, samples: float) -> bool:
        """Whether a template with so many observations may still move the words: a well-known one need not, and a flood
        of new ones is limited to about the number of known ones."""
        if samples >= _KNOWN_SAMPLES:
            self._known = self._known * (1.0 - 1.0 / _WINDOW) + 1.0
            return samples < _HEARD_SAMPLES
        if self._known > _SOME_KNOWN and self._new > self._known + _NEW_LEAD:
            return False
        self._new = self._new * (1.0 - 1.0 / _WINDOW) + 1.0
        return True

    def _forget_classes(self) -> None:
        """Classes come from a closed set; a client that sends others must not grow the memory."""
        self._paces.clear()
        self.lengths.forget_classes()
        self.acceptance.forget_classes()
