"""How the operator starts, survives, hands over and ends: real processes, a real API server that goes away."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.operator.crashes import CRASHING, PLURALS, declare, fresh, is_done, outcome
from tests.operator.operator_process import Cluster, OperatorProcess, grant, revoke, settled
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually


@pytest.fixture(scope="module")
def own_kube(
    tmp_path_factory: pytest.TempPathFactory, install_crds: Callable[[KubeApiServer], None]
) -> Iterator[KubeApiServer]:
    """An API server that these tests stop and halt."""
    with KubeApiServer(tmp_path_factory.mktemp("own-kube")) as server:
        install_crds(server)
        yield server


@pytest.fixture
def cluster(own_kube: KubeApiServer) -> Cluster:
    return grant(own_kube, own_kube.namespace(f"test-{uuid.uuid4().hex[:8]}"))


def test_ends_within_seconds_of_sigterm(own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    with OperatorProcess(own_kube, cluster.namespace, tmp_path) as operator:
        operator.wait_ready()
        assert operator.terminate() < 8  # after that it would leave a watch behind that hangs


def test_outage_of_the_api_server_is_survived(own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    with OperatorProcess(own_kube, cluster.namespace, tmp_path) as operator:
        operator.wait_ready()
        declare(cluster)
        eventually(lambda: is_done(cluster))
        own_kube.stop(signal.SIGKILL)
        time.sleep(3)
        assert operator.is_alive()
        own_kube.start()
        # Old versions are answered with 410 Gone from now on.
        cluster.patch("modelpairs", "acme", {"spec": {"killSwitch": True}})
        cluster.wait_condition("modelpairs", "acme", "KillSwitchActive", "True")
        cluster.client.delete(cluster.path("services", "slipstream-acme"))
        eventually(lambda: is_done(cluster))
        assert operator.is_alive()


def test_hung_api_server_is_survived(own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    with OperatorProcess(own_kube, cluster.namespace, tmp_path) as operator:
        operator.wait_ready()
        declare(cluster)
        eventually(lambda: is_done(cluster))
        own_kube.halt()
        time.sleep(2)
        assert operator.is_alive()
        own_kube.resume()
        cluster.client.delete(cluster.path("configmaps", "slipstream-acme"))
        eventually(lambda: is_done(cluster))


def test_what_was_deleted_while_it_was_down_is_noticed(
    own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    declare(cluster)
    with OperatorProcess(own_kube, cluster.namespace, tmp_path) as operator:
        eventually(lambda: is_done(cluster))
        operator.signal(signal.SIGKILL)
    cluster.client.delete(cluster.path("services", "slipstream-acme"))
    edited = {"spec": {"template": {"spec": {"serviceAccountName": "other"}}}}
    cluster.patch("deployments", "slipstream-acme", edited)
    with OperatorProcess(own_kube, cluster.namespace, tmp_path):
        eventually(lambda: is_done(cluster))

        def account() -> str:
            deployment = cluster.children("acme")["deployments"]
            return deployment["spec"]["template"]["spec"]["serviceAccountName"]

        eventually(lambda: account() == "slipstream-acme")


def test_rights_taken_away_end_the_process(own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    options = ("--patience", "3")
    with OperatorProcess(own_kube, cluster.namespace, tmp_path, *options) as operator:
        operator.wait_ready()
        revoke(own_kube, cluster.namespace)
        # The watches go on until they are renewed: end them, as the server does now and then.
        own_kube.restart()
        assert operator.wait() == 1
        assert "the operator cannot continue" in operator.log()


@pytest.mark.integration
def test_missing_definitions_are_waited_for_and_said(tmp_path: Path, install_crds: Callable[..., None]) -> None:
    with KubeApiServer(tmp_path / "kube") as bare:
        namespace = bare.namespace("bare")
        cluster = grant(bare, namespace)
        with OperatorProcess(bare, namespace, tmp_path) as operator:
            eventually(lambda: "no CRD of ModelPair and SpeculationPolicy" in operator.log())
            assert operator.is_alive()
            assert not operator.is_ready()
            install_crds(bare)
            operator.wait_ready()
            declare(cluster)
            eventually(lambda: is_done(cluster))


def test_one_of_two_leads_and_the_other_takes_over(own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    def holder() -> str:
        lease = cluster.get("leases", "slipstream-operator")
        return lease["spec"].get("holderIdentity", "") if lease else ""

    options = ("--leader-election",)
    with OperatorProcess(own_kube, cluster.namespace, tmp_path, *options) as first:
        eventually(holder)
        first.wait_ready()
        leader = holder()
        with OperatorProcess(own_kube, cluster.namespace, tmp_path, *options) as second:
            eventually(second.is_ready)  # standing by is its work
            assert second.is_alive()
            assert holder() == leader
            assert second.metric("slipstream_operator_reconcile_seconds_count") == 0
            declare(cluster)
            eventually(lambda: is_done(cluster))
            first.terminate()
            # The Lease was given back: no waiting until it runs out.
            assert holder() != leader
            eventually(holder, "another leader")
            cluster.client.delete(cluster.path("services", "slipstream-acme"))
            eventually(lambda: is_done(cluster))


def test_leader_that_cannot_renew_ends(own_kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    with OperatorProcess(own_kube, cluster.namespace, tmp_path, "--leader-election") as operator:
        eventually(lambda: cluster.get("leases", "slipstream-operator"))
        operator.wait_ready()
        thief = {"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 15}}
        cluster.patch("leases", "slipstream-operator", thief)
        assert operator.wait() == 1
        assert "lost the leadership: another instance has taken over" in operator.log()


@pytest.mark.timeout(400)  # two operators start for each write
def test_killed_after_any_write_it_comes_to_the_same_in_the_end(own_kube: KubeApiServer, tmp_path: Path) -> None:
    undisturbed = fresh(own_kube)
    with OperatorProcess(own_kube, undisturbed.namespace, tmp_path, module=(*CRASHING, "0")) as operator:
        eventually(lambda: is_done(undisturbed))
        expected, log = settled(lambda: (outcome(undisturbed), operator.log()), for_s=3)
        writes = sum(" PATCH " in line or " POST " in line for line in log.splitlines())
    assert writes >= len(PLURALS) + 2
    for last in range(1, len(PLURALS) + 3):
        crashed = fresh(own_kube)
        with OperatorProcess(own_kube, crashed.namespace, tmp_path, module=(*CRASHING, str(last))) as operator:
            assert operator.wait() == -signal.SIGKILL
            assert f"{last}: " in operator.log()
        with OperatorProcess(own_kube, crashed.namespace, tmp_path):
            eventually(lambda where=crashed: outcome(where) == expected)
