"""A real operator before a real API server that gets a kind of another project later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

import pytest
from slipstream_core.kube.credentials import load_credentials
from slipstream_operator.cluster.resources import FOREIGN
from slipstream_operator.handlers import kopf_watch

from tests.operator.operator_process import USER, Cluster, OperatorProcess, grant
from tests.operator.pair_objects import GROUP_SPEC
from tests.support.foreign_kinds import leader_worker_sets
from tests.support.kube import KubeApiServer, install_definitions
from tests.support.polling import PATIENCE_S, eventually

KILLED_AFTER_S = 30.0  # kopf's own limit for a process whose tasks it cancelled was 25 s


@pytest.fixture
def cluster(kube: KubeApiServer, crds: None) -> Cluster:
    return grant(kube, kube.namespace(f"operator-kinds-{uuid.uuid4().hex[:8]}"))


def test_a_kind_that_is_installed_later_needs_no_restart(kube: KubeApiServer, cluster: Cluster, tmp_path: Path) -> None:
    client, definition = cluster.client, kube.client().path_of(leader_worker_sets())
    if client.exists(definition):
        client.delete(definition)
        eventually(lambda: not client.exists(definition))
    group = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{cluster.namespace}/leaderworkersets/slipstream-late-group"
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--kinds-every", "1", "--leader-election") as operator:
        operator.wait_ready()
        cluster.declare("ModelPair", "late", GROUP_SPEC)
        cluster.wait_condition("modelpairs", "late", "Ready", "False", "KindMissing")
        install_definitions(kube, [leader_worker_sets()])
        eventually(lambda: client.exists(group))
        cluster.wait_condition("modelpairs", "late", "Progressing", "True", "RollingOut")
        client.delete(definition)
        cluster.wait_condition("modelpairs", "late", "Ready", "False", "KindMissing")
        install_definitions(kube, [leader_worker_sets()])
        eventually(lambda: client.exists(group))
        assert "(LeaderWorkerSet): everything is listed again" in operator.log()
        assert operator.terminate() < 10.0


@pytest.mark.slow
def test_it_lives_on_for_long_after_its_first_watch_has_ended(
    kube: KubeApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    client, definition = cluster.client, kube.client().path_of(leader_worker_sets())
    if not client.exists(definition):
        install_definitions(kube, [leader_worker_sets()])
        eventually(lambda: client.exists(definition))
    with OperatorProcess(kube, cluster.namespace, tmp_path, "--kinds-every", "1") as operator:
        operator.wait_ready()
        client.delete(definition)
        eventually(lambda: "everything is listed again" in operator.log())
        time.sleep(KILLED_AFTER_S)
        assert operator.is_alive(), operator.log()
        assert operator.terminate() < 10.0


def test_a_signal_ends_the_process_whose_watch_has_ended(kube: KubeApiServer, cluster: Cluster) -> None:
    """It waits for the CRDs then, or to lead."""

    async def until_signalled() -> None:
        loop, stop, is_heeded = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def heed_signals() -> None:
            loop.add_signal_handler(signal.SIGTERM, stop.set)
            is_heeded.set()

        watch = asyncio.create_task(
            kopf_watch.watch(
                dict.fromkeys(FOREIGN, (cluster.namespace,)),
                observe=lambda event, item: None,
                login=lambda: load_credentials(str(kube.kubeconfig(USER, namespace=cluster.namespace))),
                patience_s=PATIENCE_S,
                heed_signals=heed_signals,
            )
        )
        await asyncio.wait_for(is_heeded.wait(), PATIENCE_S)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), PATIENCE_S)

    before = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.run(until_signalled())
    finally:
        signal.signal(signal.SIGTERM, before)
