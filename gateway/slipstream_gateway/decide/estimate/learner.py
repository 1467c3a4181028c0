"""The learned estimates of a deployment: per class and API key, pair and pool of servers.

All values of a forecast are computed when an outcome is recorded, so that a forecast is a few look-ups. Memory is
bounded. Not thread-safe: it belongs to one event loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TypeVar

from slipstream_core.observation import Forecast, Observation, Subject

from slipstream_gateway.decide.estimate.classes import KeyModel, PairModel
from slipstream_gateway.decide.estimate.forecasts import ForecastQuery, forecast
from slipstream_gateway.decide.estimate.outcomes import is_plausible
from slipstream_gateway.decide.estimate.pools import SharedPool

_MAX_PAIRS = 256  # with adapters
# For all pairs together.
_MAX_KEYS = 512
_MAX_POOLS = 256

Value = TypeVar("Value")


class Learner:
    """Learns from the outcomes of all replicas, and forecasts requests."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, KeyModel] = OrderedDict()
        self._pairs: OrderedDict[str, PairModel] = OrderedDict()
        self._pools: OrderedDict[str, SharedPool] = OrderedDict()

    def forecast(self, query: ForecastQuery) -> Forecast:
        """What to expect of a request on the servers that might take it."""
        model = self._keys.get(_key_name(query.subject)) or self._new_key(query.subject)
        plain = fast = model.pool(query.plain_pool, self._shared(query.plain_pool))
        if query.speculative_pool is None:
            query = query._replace(speculative_load=query.plain_load)
        elif query.speculative_pool != query.plain_pool:
            fast = model.pool(query.speculative_pool, self._shared(query.speculative_pool))
            fast.lean_on(plain)
        return forecast(query, plain, fast, model)

    def record(self, observation: Observation) -> None:
        """Learns from a finished request. Ignores failed ones and those with impossible figures."""
        if not is_plausible(observation):
            return
        subject = observation.subject
        name = _key_name(subject)
        model = self._keys.get(name)
        if model is None:
            if len(self._keys) >= _MAX_KEYS:
                self._forget_one()
            model = self._keys[name] = self._new_key(subject)
        self._keys.move_to_end(name)
        model.learn(observation, model.pool(observation.pool, self._shared(observation.pool)))

    def _forget_one(self) -> None:
        """Drops the least recent model of the API key with the most models, so that a key which sends to hundreds of
        pairs and adapters does not evict the others'."""
        owners = [_owner(name) for name in self._keys]
        [(most, _)] = Counter(owners).most_common(1)  # of equal ones the first, which is the least recent
        del self._keys[next(name for name, owner in zip(self._keys, owners, strict=True) if owner == most)]

    def _new_key(self, subject: Subject) -> KeyModel:
        """An empty model of the subject's API key at its pair."""
        return KeyModel(subject.key, _found(self._pairs, _pair_name(subject), PairModel, _MAX_PAIRS))

    def _shared(self, pool: str) -> SharedPool:
        return _found(self._pools, pool, SharedPool, _MAX_POOLS)


def _found(known: OrderedDict[str, Value], name: str, make: Callable[[], Value], most: int) -> Value:
    """The value at `name`, a new one if there is none; of too many, the one that was not used for longest goes."""
    found = known.get(name)
    if found is None:
        found = known[name] = make()
        if len(known) > most:
            known.popitem(last=False)
    else:
        known.move_to_end(name)
    return found


def _pair_name(subject: Subject) -> str:
    return f"{subject.pair}\x1f{subject.adapter}" if subject.adapter else subject.pair


def _owner(name: str) -> str:
    """The API key in a name of `_key_name`."""
    return name.rpartition("\x1f")[2]


def _key_name(subject: Subject) -> str:
    return f"{_pair_name(subject)}\x1f{subject.key}"
