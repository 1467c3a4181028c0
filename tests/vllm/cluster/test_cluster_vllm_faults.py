"""A worker of a group is lost and a node is drained while clients stream: API server, operator, gateway, Redis, kubectl
and the two groups of vLLM are real. Each group is two processes, each with half of every layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.e2e.real_cluster import Cluster, Streams
from tests.e2e.test_cluster import SUMMARY
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.support.server_group import ServerGroup
from tests.vllm.cluster.pairs import OBJECTS, PATIENCE_S, with_group

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(2400)]  # four processes of vLLM

CLIENTS = 3
DRAIN_TOKENS = 20  # of an answer that a drained server finishes: at first they take it up to 17 s
DRAIN_S = 20
LOSS_TOKENS = 60  # of an answer whose server is lost: long enough to be met half-way
SOME_TOKENS = 15  # of such an answer


@pytest.fixture
def servers(
    vllm_install: VllmInstall, kube: KubeApiServer, namespace: str, tmp_path: Path, exit_stack: ExitStack
) -> list[ServerGroup]:
    servers = []
    for index, port in enumerate(lasting_ports(2)):
        folder = tmp_path / f"node-{index}"
        folder.mkdir()
        servers.append(ServerGroup(vllm_install, kube, namespace, folder, {"http": port}, index=index))
        exit_stack.callback(servers[-1].stop)
    return servers


def test_a_drained_node_and_a_lost_worker_cost_no_answer(
    groups: None, cluster: Cluster, servers: list[ServerGroup]
) -> None:
    objects = OBJECTS.replace("parityShare: 0", "parityShare: 0, resume: text")
    objects = objects.replace("drainSeconds: 5", f"drainSeconds: {DRAIN_S}")
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(with_group(objects, replicas=2)))
    path = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{cluster.namespace}/leaderworkersets"
    [group] = eventually(lambda: cluster.kube.client().items(path), "a LeaderWorkerSet")
    first = servers[0]
    with ThreadPoolExecutor(3) as pool:  # a process ends with the thread that started it: they live as long as the pool
        for server in servers:
            pool.submit(server.begin, group).result()
        first.say_rolled_out(group, "leaderworkerset.x-k8s.io/v1", "leaderworkersets")
        eventually(lambda: cluster.conditions("modelpair").get("Ready") == "True", "the pair is ready")
        with Streams(cluster, SUMMARY, clients=CLIENTS, max_tokens=DRAIN_TOKENS) as before:
            eventually(lambda: are_used(servers), "answers of both servers", within_s=PATIENCE_S)
            permit_an_eviction(cluster)
            drain = ("drain", first.node(0), "--force", "--delete-emptydir-data", "--timeout=50s")
            drained = pool.submit(cluster.kubectl, *drain)
            eventually(first.is_evicted, "the leader is evicted")
            first.end()
            assert "drained" in drained.result()
            seen = len(before.answers)
            eventually(lambda: len(before.answers) > seen + CLIENTS, "answers of the other server", within_s=PATIENCE_S)
        assert [answer for answer in before.answers if answer.resumed] == []  # the server finished its answers

        pool.submit(first.begin, group).result()
        with Streams(cluster, SUMMARY, clients=CLIENTS, max_tokens=LOSS_TOKENS) as after:
            eventually(lambda: are_used(servers), "answers of both servers", within_s=PATIENCE_S)
            lost = half_way(servers)
            lost.kill_worker()
            began_s = time.monotonic()
            lost.end()
            eventually(lambda: any(answer.resumed for answer in after.answers), "a resumed answer", within_s=PATIENCE_S)
            seen = len(after.answers)
            eventually(lambda: len(after.answers) > seen + CLIENTS, "answers of the other server", within_s=PATIENCE_S)
    answers = [*before.answers, *after.answers]
    [short], [long] = ({answer.text for answer in each.answers} for each in (before, after))
    assert long.startswith(short)
    during = [answer for answer in after.answers if answer.ended_s > began_s]
    print(
        f"{len(answers)} answers, all equal, 0 failed; {sum(bool(answer.resumed) for answer in answers)} resumed; "
        f"longest {max(answer.ended_s - answer.began_s for answer in during):.1f} s after the loss of the worker, "
        f"{max(answer.ended_s - answer.began_s for answer in before.answers):.1f} s around the drain"
    )


def are_used(servers: Sequence[ServerGroup]) -> bool:
    return all(server.answers() > CLIENTS for server in servers)


def half_way(servers: Sequence[ServerGroup]) -> ServerGroup:
    """A server that is in the middle of a client's answer. Returns once there is one.

    The loss of another server leaves nothing to resume. Equal requests prefer one server, and the other one may have
    only the gateways' short probes. So the server must have ended a client's answer before.
    """
    since = [server.progress() for server in servers]
    has_clients: set[int] = set()

    def found() -> ServerGroup | None:
        time.sleep(0.1)
        for index, server in enumerate(servers):
            tokens, ended = server.progress()
            if ended != since[index][1]:
                since[index] = tokens, ended
                has_clients.add(index)
            if index in has_clients and tokens - since[index][0] >= SOME_TOKENS:
                return server
        return None

    return eventually(found, "an answer that has begun and not ended", within_s=PATIENCE_S)


def permit_an_eviction(cluster: Cluster) -> None:
    """What the disruption controller writes for four healthy pods of which one may be missing."""
    client = cluster.kube.client()
    version = client.get("/apis/policy")["preferredVersion"]["groupVersion"]
    path = f"/apis/{version}/namespaces/{cluster.namespace}/poddisruptionbudgets/slipstream-support"
    counts = {"expectedPods": 4, "currentHealthy": 4, "desiredHealthy": 3, "disruptionsAllowed": 1}
    client.patch_status(path, {**counts, "observedGeneration": client.get(path)["metadata"]["generation"]})
