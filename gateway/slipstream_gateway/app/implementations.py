"""The implementations that the settings choose: the source of the routing table, the classifier, the store of outcomes,
access control, and a client for each replica. Libraries that the settings do not need are never imported.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from slipstream_core.endpoint_rules import EndpointRules, may_name_variable
from slipstream_core.environment import secret
from slipstream_core.errors import CommandError
from slipstream_core.manifest import WireProtocol
from slipstream_core.manifest.dialects import DIALECTS
from slipstream_core.manifest.kill_file import KillFile, kills_beside
from slipstream_core.settings import GatewaySettings

from slipstream_gateway.access import KeyedAccess, KeyFile, Limiter, LocalLimits, SharedLimits
from slipstream_gateway.access.state_owners import SharedOwners, StateOwners
from slipstream_gateway.api.access_control import OPEN_ACCESS, AccessControl
from slipstream_gateway.decide.classify import LinearClassifier, default_model, load_model
from slipstream_gateway.fleet.fleet import ConfigurationSource, Fleet
from slipstream_gateway.fleet.snapshot import ReplicaKey
from slipstream_gateway.request.decider import Classifier
from slipstream_gateway.request.observations import MemoryStore
from slipstream_gateway.sources.file import FileSource
from slipstream_gateway.telemetry.audit import Audit
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.engine_server import EngineUpstream
from slipstream_gateway.upstreams.http_transport import HttpTransport
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream
from slipstream_gateway.upstreams.refused_upstream import RefusedUpstream
from slipstream_gateway.upstreams.tls import Credentials, read_credentials
from slipstream_gateway.upstreams.transport import Transport

if TYPE_CHECKING:
    from slipstream_core.redis.redis_store import RedisStore


_KEPT_KEYS = "last-good-keys.json"
_log = logging.getLogger(__name__)


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
    return [route.key for route in fleet.current.table.routes.values()]


def build_access(settings: GatewaySettings, audit: Audit) -> AccessControl:
    if settings.access.keys is None:
        return OPEN_ACCESS
    folder = settings.workers_folder
    keys = KeyFile(
        settings.access.keys, settings.access.pepper, kept=folder / _KEPT_KEYS if folder is not None else None
    )
    return KeyedAccess(
        keys,
        Limiter(LocalLimits(parts=settings.workers), _shared(settings)),
        most_arriving=settings.limits.max_in_flight,
        owners=StateOwners(_shared_owners(settings)),
        clock=time.time,
        on_reload=lambda number: audit.event("keys", who="file", keys=number),
    )


def running(access: AccessControl) -> AbstractAsyncContextManager[object]:
    """The context in which `access` follows its file."""
    return access if isinstance(access, KeyedAccess) else nullcontext()


def _shared(settings: GatewaySettings) -> SharedLimits | None:
    """Redis' client is imported only if it is used."""
    if settings.redis_url is None:
        return None
    from slipstream_core.redis.redis_limits import RedisLimits

    return RedisLimits(settings.redis_url)


def _shared_owners(settings: GatewaySettings) -> SharedOwners | None:
    if settings.redis_url is None:
        return None
    from slipstream_core.redis.redis_state_owners import RedisStateOwners

    return RedisStateOwners(settings.redis_url)


def connect(key: ReplicaKey, settings: GatewaySettings, tls: Credentials | None = None) -> Upstream:
    """A live upstream for a replica. `tls` has the credentials for an address with TLS. gRPC is imported only if a
    manifest uses it."""
    cluster = settings.cluster
    # A gateway with a kubeconfig runs on its user's own machine; a pod serves manifests that others write.
    rules = EndpointRules(settings.upstreams.endpoints, shared=cluster is not None and cluster.kubeconfig is None)
    if reason := rules.refuse(key.endpoint):
        _log.warning("no connection to %s: %s", key.endpoint, reason)
        return RefusedUpstream("The upstream's address is not permitted by --allow-endpoint.", reason=reason)
    if tls is None and key.endpoint.startswith(("grpcs://", "https://")):
        tls = read_credentials(settings.upstreams.tls)
    try:
        api_key = _api_key(key.api_key_env, settings)
    except CommandError as exc:
        _log.warning("no connection to %s: %s", key.endpoint, exc)
        return RefusedUpstream("The gateway has no usable API key for the upstream.", reason=str(exc))
    transport = _transport(key, settings, rules, tls)
    if key.drafts_per_request or transport.is_of_engines:
        return EngineUpstream(transport, api_key=api_key)
    return OpenAiUpstream(transport, api_key=api_key, dialect=DIALECTS[key.dialect])


def _transport(key: ReplicaKey, settings: GatewaySettings, rules: EndpointRules, tls: Credentials | None) -> Transport:
    connect_timeout_s = settings.deadlines.connect_s
    if key.protocol is not WireProtocol.TRITON:
        context = tls.context if tls is not None else None
        return HttpTransport(key.endpoint, connect_timeout_s=connect_timeout_s, tls=context, rules=rules)
    from slipstream_gateway.upstreams.triton_transport import TritonTransport

    scheme, _, address = key.endpoint.partition("://")
    credentials = tls if scheme == "grpcs" else None
    return TritonTransport(address, model=key.model, connect_timeout_s=connect_timeout_s, tls=credentials, rules=rules)


def _api_key(name: str | None, settings: GatewaySettings) -> str | None:
    if name is None:
        return None
    if not may_name_variable(name, settings.upstreams.key_variables):
        _log.warning("the manifest names %s for an API key, which --allow-key-env does not allow", name)
        return None
    if (key := secret(name)) is None:
        _log.warning("the manifest names %s for an API key, but it is not set", name)
    return key
