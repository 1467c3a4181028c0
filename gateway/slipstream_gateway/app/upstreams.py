"""A live client for each replica of a manifest, if its address is permitted."""

from __future__ import annotations

import logging

from slipstream_core.environment import secret
from slipstream_core.manifest import WireProtocol
from slipstream_core.settings import GatewaySettings

from slipstream_gateway.fleet.snapshot import ReplicaKey
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.endpoint_rules import EndpointRules, may_name_variable
from slipstream_gateway.upstreams.refused import RefusedUpstream
from slipstream_gateway.upstreams.tls import Credentials, read_credentials

_log = logging.getLogger(__name__)


def connect(key: ReplicaKey, settings: GatewaySettings, tls: Credentials | None = None) -> Upstream:
    """A live upstream for a replica. `tls` has the credentials for an address with TLS. Clients of protocols that no
    manifest uses are never imported."""
    cluster = settings.cluster
    # A gateway with a kubeconfig runs on its user's own machine; a pod serves manifests that others write.
    rules = EndpointRules(settings.upstreams.endpoints, shared=cluster is not None and cluster.kubeconfig is None)
    if reason := rules.refuse(key.endpoint):
        _log.warning("no connection to %s: %s", key.endpoint, reason)
        return RefusedUpstream(reason)
    if tls is None and key.endpoint.startswith(("grpcs://", "https://")):
        tls = read_credentials(settings.upstreams.tls)
    connect_timeout_s = settings.deadlines.connect_s
    if key.protocol is WireProtocol.TRITON:
        from slipstream_gateway.upstreams.triton_server import TritonUpstream

        scheme, _, address = key.endpoint.partition("://")
        credentials = tls if scheme == "grpcs" else None
        return TritonUpstream(
            address, model=key.model, connect_timeout_s=connect_timeout_s, tls=credentials, rules=rules
        )
    from slipstream_gateway.upstreams.openai_server import OpenAiUpstream
    from slipstream_gateway.upstreams.vllm_server import VllmUpstream

    context = tls.context if tls is not None else None
    api_key = _api_key(key.api_key_env, settings)
    kind = VllmUpstream if key.drafts_per_request else OpenAiUpstream
    return kind(key.endpoint, connect_timeout_s=connect_timeout_s, api_key=api_key, tls=context, rules=rules)


def _api_key(name: str | None, settings: GatewaySettings) -> str | None:
    if name is None:
        return None
    if not may_name_variable(name, settings.upstreams.key_variables):
        _log.warning("the manifest names %s for an API key, which --allow-key-env does not allow", name)
        return None
    if (key := secret(name)) is None:
        _log.warning("the manifest names %s for an API key, but it is not set", name)
    return key
