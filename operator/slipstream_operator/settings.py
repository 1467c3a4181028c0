"""What a run of the operator is set to."""

from __future__ import annotations

from pathlib import Path

import msgspec
from slipstream_core.settings import NO_GRANTS, Grants

from slipstream_operator.plan import DEFAULT_IMAGE, KubeObject

LIVENESS_PORT = 8081
METRICS_PORT = 9090
RESYNC_S = 600.0
PATIENCE_S = 120.0
WORKERS = 16


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`release` names this installation, None for one after its namespace. `namespaces` are those watched,
    empty for all, and `grants` is what they may use. `report_namespace` and `lease_namespace` are the operator's own
    where they are None. `server_ingress`: see `ServingDefaults`. `patience_s` is how long the API server may refuse, or
    fail, before the process ends."""

    release: str | None = None
    namespaces: tuple[str, ...] = ()
    grants: Grants = NO_GRANTS
    report_namespace: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    redis_url: str | None = None
    image: str = DEFAULT_IMAGE
    server_ingress: tuple[KubeObject, ...] | None = None
    host: str = "127.0.0.1"
    liveness_port: int = LIVENESS_PORT
    metrics_port: int = METRICS_PORT
    leader_election: bool = False
    lease_namespace: str | None = None
    resync_s: float = RESYNC_S
    patience_s: float = PATIENCE_S
    workers: int = WORKERS
