"""The versions in which the API server has the kinds that the operator needs."""

from __future__ import annotations

import asyncio
import logging

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError

from slipstream_operator.cluster.resources import FOREIGN, PARENTS, Kind, Resource, resources

_RETRY_S = 2.0
_PDB_VERSIONS = ("v1", "v1beta1")  # v1 came with Kubernetes 1.21
_HPA_VERSIONS = ("v2", "v2beta2")  # v2 came with Kubernetes 1.23

_logger = logging.getLogger(__name__)


async def find_resources(client: KubeClient) -> dict[Kind, Resource]:
    """Every kind, in the server's version. Waits for the server and for the CRDs, and logs the reason."""
    said = ""
    while True:
        try:
            known = await _known(client)
            if not (missing := await _missing(client, known)):
                return known
            reason = f"the cluster has no CRD of {' and '.join(missing)}: install the chart slipstream-crds"
        except KubeError as exc:
            reason = str(exc)
        if reason != said:
            _logger.warning("waiting: %s", reason)
            said = reason
        await asyncio.sleep(_RETRY_S)


async def until_changed(client: KubeClient, known: dict[Kind, Resource], *, every_s: float) -> bool:
    """Look every `every_s` seconds. Returns True when the server has other kinds or versions than `known`."""
    while True:
        await asyncio.sleep(every_s)
        try:
            now = await _known(client)
        except KubeError:
            continue  # the watch says so
        if now != known:
            names = sorted({one.kind.value for one in now.values()} ^ {one.kind.value for one in known.values()})
            _logger.warning("the cluster's kinds have changed (%s): everything is listed again", ", ".join(names))
            return True


async def _known(client: KubeClient) -> dict[Kind, Resource]:
    return resources(
        pdb_version=await _newest(client, "policy", _PDB_VERSIONS),
        hpa_version=await _newest(client, "autoscaling", _HPA_VERSIONS),
        foreign=[resource for resource in FOREIGN if resource.plural in await _plurals(client, resource.root)],
    )


async def _newest(client: KubeClient, group: str, versions: tuple[str, ...]) -> str:
    """The first of `versions` that the server has of `group`; the first of all if it has none of them."""
    found = await client.find(f"/apis/{group}")
    served = {entry["version"] for entry in (found or {}).get("versions", ())}
    return next((version for version in versions if version in served), versions[0])


async def _missing(client: KubeClient, known: dict[Kind, Resource]) -> list[str]:
    ours = [known[kind] for kind in sorted(PARENTS)]
    there = await _plurals(client, ours[0].root)
    return [resource.kind.value for resource in ours if resource.plural not in there]


async def _plurals(client: KubeClient, root: str) -> set[str]:
    """The names of the kinds that the server has in a version of an API group."""
    listed = await client.find(root)
    return {entry["name"] for entry in (listed or {}).get("resources", ())}
