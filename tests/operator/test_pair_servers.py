"""Which servers answer: those of the pair's spec, or others. And what is known of children goes with their pair."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.kube.client import KubeClient
from slipstream_core.manifest.status import Condition, ModelPairStatus
from slipstream_operator.children.writer import ChildWriter
from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.resources import Kind, ObjectKey, resources
from slipstream_operator.reconcile.servers import Servers, servers_of, template_seen

from tests.support.kube import KubeApiServer

PAIR = {"metadata": {"generation": 3}}
STUCK = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]


def deployment(*, generation: int = 5, **status: Any) -> dict[str, Any]:
    counts = {"observedGeneration": 5, "replicas": 2, "updatedReplicas": 2}
    template = {"spec": "new"}
    return {"metadata": {"generation": generation}, "spec": {"template": template}, "status": {**counts, **status}}


def pair_status(reason: str = "RollingOut", *, generation: int = 3) -> ModelPairStatus:
    progressing = Condition(
        type="Progressing", status="True", reason=reason, message="", last_transition_time="", observed_generation=3
    )
    return ModelPairStatus(observed_generation=generation, conditions=(progressing,))


@pytest.mark.parametrize(
    ("live", "status", "expected"),
    [
        (None, pair_status(), Servers()),  # they run elsewhere
        (None, None, Servers(current=True, counted=False)),
        (deployment(), pair_status(), Servers()),
        (deployment(readyReplicas=0), pair_status(), Servers()),  # new ones that are not ready yet answer nothing
        (deployment(replicas=3), pair_status(), Servers(current=False, counted=False)),
        (deployment(updatedReplicas=None), pair_status(), Servers(current=False, counted=False)),
        (deployment(replicas=3, conditions=STUCK), pair_status(), Servers(current=False, counted=True)),
        (deployment(replicas=3), pair_status("DeadlineExceeded"), Servers(current=False, counted=True)),  # of groups
        (deployment(generation=6), pair_status(), Servers(current=True, counted=False)),
        (deployment(generation=6, conditions=STUCK), pair_status(), Servers(current=True, counted=False)),
        (deployment(), pair_status(generation=2), Servers(current=True, counted=False)),
        (deployment(), None, Servers(current=True, counted=False)),
        (deployment(), pair_status("ChildrenRejected"), Servers(current=False, counted=True)),
    ],
)
def test_servers_count_as_the_spec_has_them(
    live: dict[str, Any] | None, status: ModelPairStatus | None, expected: Servers
) -> None:
    assert servers_of(PAIR, status, live) == expected


def test_number_of_servers_that_nobody_has_seen_yet_interrupts_nothing() -> None:
    seen = template_seen(deployment())
    assert servers_of(PAIR, pair_status(), deployment(generation=6), template=seen) == Servers()
    assert not servers_of(PAIR, pair_status(), deployment(generation=6), template={"spec": "old"}).counted


async def test_how_the_api_server_writes_a_child_is_forgotten_with_its_pair(
    kube: KubeApiServer, namespace: str
) -> None:
    pair = {"kind": "ModelPair", "metadata": {"name": "acme", "namespace": namespace, "uid": "u1"}}
    owner = {"apiVersion": "slipstream.dev/v1alpha1", "kind": "ModelPair", "name": "acme", "uid": "u1"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "slipstream-acme",
            "namespace": namespace,
            "ownerReferences": [{**owner, "controller": True}],
        },
        # False is what is not there: the API server drops it.
        "spec": {"publishNotReadyAddresses": False, "ports": [{"port": 8001, "protocol": "TCP"}]},
    }
    async with KubeClient(kube.kubeconfig("admin"), name="slipstream-operator") as api:
        writer = ChildWriter(api, ObjectCache(), resources())
        written = [(await writer.bring_about(pair, (service,))).written for _ in range(2)]
        assert written == [1, 0]
        writer.forget(ObjectKey(Kind.MODEL_PAIR, namespace, "acme"))
        assert (await writer.bring_about(pair, (service,))).written == 1
