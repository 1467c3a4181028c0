"""All children of a pair, in the order of writing: dependencies first."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.engines import SlipstreamEngine
from slipstream_core.manifest.objects import ModelPair

from slipstream_operator.children.budget import disruption_budget
from slipstream_operator.children.deployment import deployment
from slipstream_operator.children.identity import Owner, child
from slipstream_operator.children.network import network_policy
from slipstream_operator.children.repository import repository_config_map
from slipstream_operator.children.service import service
from slipstream_operator.types import KubeObject, ServingDefaults


def has_servers(pair: ModelPair) -> bool:
    """Whether the operator runs servers for `pair`. It does not if the pair has addresses of external servers."""
    engine = pair.spec.engine
    return isinstance(engine, SlipstreamEngine) and not engine.endpoints


def children_of(
    pair: ModelPair, *, uid: str, defaults: ServingDefaults, live: KubeObject | None
) -> tuple[KubeObject, ...]:
    """The children of `pair`, whose object has the uid `uid`; none if it has no servers of its own.

    `live` is its present Deployment, which shows the owner of the number of replicas.
    """
    if not has_servers(pair):
        return ()
    owner = Owner(name=pair.metadata.name, namespace=pair.metadata.namespace or "default", uid=uid)
    config_map = repository_config_map(pair, owner)
    return (
        _service_account(owner),
        config_map,
        service(owner),
        disruption_budget(owner, api_version=defaults.pdb_api_version),
        *_network_policies(owner, defaults),
        deployment(pair, owner, defaults=defaults, repository=config_map["data"], live=live),
    )


def _network_policies(owner: Owner, defaults: ServingDefaults) -> tuple[dict[str, Any], ...]:
    if defaults.server_ingress is None:
        return ()
    return (network_policy(owner, ingress=defaults.server_ingress),)


def _service_account(owner: Owner) -> dict[str, Any]:
    """The servers' identity. It has no rights, and no pod gets its token."""
    return child("v1", "ServiceAccount", owner, automountServiceAccountToken=False)
