"""A manifest file for a gateway that could not reach its cluster since its start: all of it is served plainly."""

from __future__ import annotations

import logging
from pathlib import Path

from slipstream_core.errors import ManifestError
from slipstream_core.manifest.files import read_file
from slipstream_core.manifest.naming import child_name
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.parse import parse
from slipstream_core.manifest.table import RoutingTable, compile_table

from slipstream_gateway.sources.cluster.endpoints import GRPC_PORT

_WHY = "the cluster was not reached since the start: its fallback file is served plainly"
_log = logging.getLogger(__name__)


def fallback_table(path: Path, *, namespace: str) -> RoutingTable | None:
    """The table of the file at `path`; None where it cannot be used, for a reason that is logged.

    Pairs of Slipstream's engine that name no servers are reached by the DNS name of the Service that the operator
    makes for them, in `namespace` where they name none.
    """
    try:
        objects = parse(read_file(path), name=path.name)
    except ManifestError as exc:
        _log.error("the fallback manifest cannot be used: %s", exc)
        return None
    pairs = [item for item in objects if isinstance(item, ModelPair)]
    endpoints = {
        pair.metadata.key: (
            f"grpc://{child_name(pair.metadata.name)}.{pair.metadata.namespace or namespace}.svc:{GRPC_PORT}",
        )
        for pair in pairs
    }
    return compile_table(objects, endpoints=endpoints, kills={pair.metadata.key: _WHY for pair in pairs})
