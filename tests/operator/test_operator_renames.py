"""A real operator accepts a rename by itself once clients have stopped: by a gateway's report, which is a Lease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipstream_core.manifest.reports import GatewayReport, pair_object_key, report_lease
from slipstream_operator.reconcile.usage import IN_USE_FOR

from tests.operator.operator_process import OperatorProcess, grant
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually

LEFT = timedelta(seconds=40)  # until clients have been gone for long enough
WAIT_S = 120.0


def test_rename_is_accepted_without_another_event_when_the_last_request_is_old_enough(
    kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path
) -> None:
    cluster = grant(kube, namespace)

    def is_in_use() -> bool:
        return (cluster.client.get(cluster.path("modelpairs", "acme")).get("status") or {}).get("inUse") is True

    with OperatorProcess(kube, namespace, tmp_path) as operator:
        operator.wait_ready()
        cluster.pair("acme")
        cluster.wait_condition("modelpairs", "acme", "Accepted", "True", "Accepted")
        seen = datetime.now(UTC) - IN_USE_FOR + LEFT
        report = GatewayReport(
            name="gone",
            namespaces=(namespace,),  # else commands in other namespaces of this cluster would wait for it
            applied={},
            renewed=seen,
            in_use=(pair_object_key(f"{namespace}/acme"),),
        )
        cluster.client.create(cluster.path("leases"), report_lease(report, namespace=namespace))
        eventually(is_in_use)
        cluster.patch("modelpairs", "acme", {"spec": {"model": "new"}})
        said = cluster.wait_condition("modelpairs", "acme", "Accepted", "False", "ModelNameInUse")
        assert f"'acme', last at {seen:%Y-%m-%dT%H:%M:00Z}" in said
        eventually(lambda: not is_in_use(), within_s=WAIT_S)
        cluster.wait_condition("modelpairs", "acme", "Accepted", "True", "Accepted")
        [event] = eventually(lambda: [e for e in cluster.events("acme") if e["reason"] == "ModelRenamed"])
        assert "as 'new', no longer as 'acme'" in event["message"]
