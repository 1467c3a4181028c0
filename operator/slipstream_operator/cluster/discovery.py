"""The versions in which the API server has the kinds that the operator needs."""

from __future__ import annotations

import asyncio
import logging

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError

from slipstream_operator.cluster.resources import LEADER_WORKER_SETS, PARENTS, Kind, Resource, resources

_RETRY_S = 2.0
_PDB_VERSIONS = ("v1", "v1beta1")  # v1 came with Kubernetes 1.21

_logger = logging.getLogger(__name__)


async def find_resources(client: KubeClient) -> dict[Kind, Resource]:
    """Every kind, in the server's version. Waits for the server and for the CRDs, and logs the reason."""
    said = ""
    while True:
        try:
            known = resources(
                pdb_version=await _pdb_version(client),
                has_leader_worker_sets=await client.find(LEADER_WORKER_SETS.root) is not None,
            )
            if not (missing := await _missing(client, known)):
                return known
            reason = f"the cluster has no CRD of {' and '.join(missing)}: install the chart slipstream-crds"
        except KubeError as exc:
            reason = str(exc)
        if reason != said:
            _logger.warning("waiting: %s", reason)
            said = reason
        await asyncio.sleep(_RETRY_S)


async def _pdb_version(client: KubeClient) -> str:
    group = await client.find("/apis/policy")
    served = {entry["version"] for entry in (group or {}).get("versions", ())}
    return next((version for version in _PDB_VERSIONS if version in served), _PDB_VERSIONS[0])


async def _missing(client: KubeClient, known: dict[Kind, Resource]) -> list[str]:
    ours = [known[kind] for kind in sorted(PARENTS)]
    listed = await client.find(ours[0].root)
    there = {entry["name"] for entry in (listed or {}).get("resources", ())}
    return [resource.kind.value for resource in ours if resource.plural not in there]
