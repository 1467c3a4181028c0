"""The learned estimates of a deployment: per fingerprint, class, pair and pool of servers.

All values of a forecast are computed when an outcome is recorded, so that a forecast is a few look-ups. Memory is
bounded. Not thread-safe: it belongs to one event loop.
"""

from __future__ import annotations

from slipstream_core.observation import Forecast, Observation, Subject
from slipstream_core.types import GenerationRequest, RequestProfile

from slipstream_gateway.decide.estimate.classes import KeyModel, PairModel
from slipstream_gateway.decide.estimate.fingerprint import Fingerprinter
from slipstream_gateway.decide.estimate.forecasts import ForecastQuery, Question, forecast
from slipstream_gateway.decide.estimate.outcomes import is_plausible
from slipstream_gateway.decide.estimate.pools import PoolModel
from slipstream_gateway.decide.estimate.segmented import SegmentedMap
from slipstream_gateway.decide.estimate.template import SETTLED_HITS, Template

_MAX_SOURCES = 4096
_MAX_PAIRS = 256  # with adapters
# For all pairs together.
_MAX_KEYS = 512
_MAX_POOLS = 256
# All unproven sources together count as one.
_UNSETTLED = ""


class Learner:
    """Learns from the outcomes of all replicas, and forecasts requests."""

    def __init__(self, *, max_fingerprints: int = 20_000) -> None:
        self._fingerprinter = Fingerprinter()
        self._templates: SegmentedMap[Template] = SegmentedMap(max_fingerprints)
        self._sources: SegmentedMap[list[int]] = SegmentedMap(_MAX_SOURCES)
        self._keys: SegmentedMap[KeyModel] = SegmentedMap(_MAX_KEYS)
        self._pairs: dict[str, PairModel] = {}
        self._pools: dict[str, PoolModel] = {}

    @property
    def fingerprints(self) -> int:
        """The number of stored fingerprints."""
        return len(self._templates)

    def subject(
        self,
        request: GenerationRequest,
        profile: RequestProfile,
        *,
        pair: str,
        key_id: str,
        is_authenticated: bool = False,
        adapter: str = "",
    ) -> Subject:
        """The key of the estimates of `request`; `key_id` is the public id of its API key. If it `is_authenticated`,
        classes are estimated for that key; otherwise a client could invent keys, so all count as one. Classes of an
        `adapter` are estimated apart from those of the pair's model: its answers are others, and the draft fits it
        worse."""
        return self._fingerprinter.subject(
            request, profile, pair=pair, key_id=key_id, is_authenticated=is_authenticated, adapter=adapter
        )

    def forecast(self, query: ForecastQuery) -> Forecast:
        """What to expect of a request on the servers that might take it."""
        plain = fast = self._pool(query.plain_pool)
        if query.speculative_pool is None:
            query = query._replace(speculative_load=query.plain_load)
        elif query.speculative_pool != query.plain_pool:
            fast = self._pool(query.speculative_pool)
            fast.lean_on(plain)
        template = self._templates.peek(query.subject.fingerprint)
        return forecast(Question(query, plain, fast, template, self._model(query.subject)))

    def record(self, observation: Observation) -> None:
        """Learns from a finished request. Ignores failed ones and those with impossible figures."""
        if not is_plausible(observation):
            return
        subject = observation.subject
        member = self._member(subject.source)
        template = self._template(subject.fingerprint)
        template.learn(observation, member, self._used_model(subject), self._pool(observation.pool))

    def _template(self, fingerprint: str) -> Template:
        template = self._templates.peek(fingerprint)
        if template is None:
            template = Template()
            self._templates.add(fingerprint, template)
        template.hits += 1
        self._templates.touch(fingerprint, protect=template.hits >= SETTLED_HITS)
        return template

    def _member(self, source: str) -> str:
        hits = self._sources.peek(source)
        if hits is None:
            hits = [0]
            self._sources.add(source, hits)
        hits[0] += 1
        self._sources.touch(source, protect=hits[0] >= SETTLED_HITS)
        return source if hits[0] >= SETTLED_HITS else _UNSETTLED

    def _model(self, subject: Subject) -> KeyModel:
        """The model of the subject's API key at its pair; an empty one if none is stored."""
        return self._keys.peek(_key_name(subject)) or KeyModel(subject.key, self._pair(_pair_name(subject)))

    def _used_model(self, subject: Subject) -> KeyModel:
        """The model of the subject's API key at its pair, stored from now on, with one more request."""
        name = _key_name(subject)
        model = self._keys.peek(name)
        if model is None:
            model = KeyModel(subject.key, self._pair(_pair_name(subject)))
            self._keys.add(name, model)
        model.hits += 1
        self._keys.touch(name, protect=model.hits >= SETTLED_HITS)
        return model

    def _pair(self, name: str) -> PairModel:
        found = self._pairs.get(name)
        if found is None:
            if len(self._pairs) >= _MAX_PAIRS:
                del self._pairs[next(iter(self._pairs))]
            found = self._pairs[name] = PairModel()
        return found

    def _pool(self, name: str) -> PoolModel:
        found = self._pools.get(name)
        if found is None:
            if len(self._pools) >= _MAX_POOLS:
                del self._pools[next(iter(self._pools))]
            found = self._pools[name] = PoolModel()
        return found


def _pair_name(subject: Subject) -> str:
    return f"{subject.pair}\x1f{subject.adapter}" if subject.adapter else subject.pair


def _key_name(subject: Subject) -> str:
    return f"{_pair_name(subject)}\x1f{subject.key}"
