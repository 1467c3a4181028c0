"""Builds the sources of the gateway's data: the routing table, the classifier, the outcomes of other gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_core.errors import CommandError
from slipstream_core.manifest.kill_switch import KillFile, kills_beside
from slipstream_core.settings import GatewaySettings

from slipstream_gateway.decide.classify import LinearClassifier, default_model, load_model
from slipstream_gateway.fleet.configuration import ConfigurationSource
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.request.decider import Classifier
from slipstream_gateway.request.learning import MemoryStore
from slipstream_gateway.sources.file import FileSource

if TYPE_CHECKING:
    from slipstream_core.redis.redis_store import RedisStore


def configuration(settings: GatewaySettings, fleet: Fleet) -> ConfigurationSource:
    """The source of the routing table. The client of Kubernetes' API is imported only if it is used."""
    if settings.cluster is not None:
        from slipstream_gateway.sources.cluster.source import ClusterSource

        return ClusterSource(settings.cluster, fleet)
    if settings.manifest is None:
        raise CommandError("neither a manifest nor a cluster is given.")
    kills = KillFile(kills_beside(settings.manifest, settings.state_folder))
    return FileSource(settings, settings.manifest, fleet, kills)


def classifier(settings: GatewaySettings) -> Classifier:
    return LinearClassifier(default_model() if settings.classifier is None else load_model(settings.classifier))


def outcome_store(settings: GatewaySettings, fleet: Fleet) -> MemoryStore | RedisStore:
    """The store that shares outcomes between gateways. Redis' client is imported only if it is used."""
    if settings.redis_url is None:
        return MemoryStore()
    from slipstream_core.redis.redis_store import RedisStore

    return RedisStore(settings.redis_url, pairs=lambda: pairs(fleet))


def pairs(fleet: Fleet) -> list[str]:
    """The keys of the pairs of the current manifest."""
    return [route.pair.metadata.key for route in fleet.current.table.routes.values()]
