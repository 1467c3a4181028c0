"""What a pair's status says of its pods: the one thing that tells most."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_operator.reconcile.pods import PodReason, telling, worst_problem

JSON = dict[str, Any]


def pod(name: str = "acme-1", *, leaving: bool = False, **status: Any) -> JSON:
    metadata: JSON = {"name": name}
    if leaving:
        metadata["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    return {"metadata": metadata, "status": status}


def container(
    name: str = "triton", *, waiting: JSON | None = None, ended: JSON | None = None, ended_before: JSON | None = None
) -> JSON:
    state = {key: value for key, value in (("waiting", waiting), ("terminated", ended)) if value is not None}
    status: JSON = {"name": name, "image": "triton:1", "ready": False, "restartCount": 4, "state": state}
    if ended_before is not None:
        status["lastState"] = {"terminated": ended_before}
    return status


def unschedulable(message: str) -> JSON:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


CRASH_LOOP = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "triton:1"'}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        pytest.param(
            unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
            PodReason.UNSCHEDULABLE,
            "3 Insufficient nvidia.com/gpu",
            id="no room",
        ),
        pytest.param(
            unschedulable('0/3 nodes are available: persistentvolumeclaim "weights" not found.'),
            PodReason.CLAIM_NOT_FOUND,
            "'weights'",
            id="no claim",
        ),
        pytest.param(
            {"containerStatuses": [container(waiting=PULL)]}, PodReason.IMAGE_PULL_FAILED, "image triton:1", id="image"
        ),
        pytest.param(
            {
                "containerStatuses": [
                    container(waiting={"reason": "CreateContainerConfigError", "message": "no such key"})
                ]
            },
            PodReason.CONTAINER_FAILED,
            "no such key",
            id="configuration",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    container(
                        waiting=CRASH_LOOP,
                        ended_before={
                            "exitCode": 1,
                            "reason": "Error",
                            "message": "loading\nTritonModelException: device 'cuda' is not there\\n at",
                        },
                    )
                ]
            },
            PodReason.CRASH_LOOP,
            "container triton exited with code 1 (4 restarts): device 'cuda' is not there",
            id="crash loop",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    container(waiting=CRASH_LOOP, ended_before={"exitCode": 137, "reason": "OOMKilled"})
                ]
            },
            PodReason.OUT_OF_MEMORY,
            "more memory than its limit",
            id="memory",
        ),
        pytest.param(
            {
                "initContainerStatuses": [
                    container(
                        "preflight",
                        ended={"exitCode": 1, "reason": "Error", "message": "checkpoint '/models/x': no config.json"},
                    )
                ],
                "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
            },
            PodReason.PREFLIGHT_FAILED,
            "checkpoint '/models/x': no config.json",
            id="preflight",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            PodReason.EVICTED,
            "low on resource",
            id="evicted",
        ),
    ],
)
def test_a_pods_problem_is_named_in_its_own_words(status: JSON, reason: PodReason, words: str):
    problem = worst_problem([pod(**status)], None)
    assert problem is not None
    assert problem.reason is reason
    assert problem.message.startswith("pod acme-1: ")
    assert words in problem.message


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="new"),
        pytest.param(
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ContainerCreating"})]},
            id="starting",
        ),
        pytest.param(
            {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True"}],
                "initContainerStatuses": [
                    {"name": "preflight", "ready": True, "state": {"terminated": {"exitCode": 0, "message": "{}"}}}
                ],
                "containerStatuses": [
                    {
                        "name": "triton",
                        "ready": True,
                        "state": {"running": {}},
                        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ],
            },
            id="well again after a crash",
        ),
    ],
)
def test_a_pod_that_is_well_or_on_its_way_has_none(status: JSON):
    assert worst_problem([pod(**status)], None) is None


def test_the_most_telling_problem_of_all_pods_is_told():
    pods = [
        pod("acme-1", **unschedulable("0/3 nodes are available")),
        pod("acme-2", containerStatuses=[container(waiting=PULL)]),
    ]
    for order in (pods, pods[::-1]):
        problem = worst_problem(order, None)
        assert problem is not None
        assert problem.message.startswith("pod acme-2: ")


def test_a_pod_that_leaves_has_no_problem_any_more():
    assert worst_problem([pod(leaving=True, containerStatuses=[container(waiting=PULL)])], None) is None


def test_a_long_message_is_cut():
    problem = worst_problem([pod(**unschedulable("node " * 2000))], None)
    assert problem is not None
    assert len(problem.message) < 700


def test_the_last_line_tells_where_none_is_known():
    assert telling("starting\nSegmentation fault\n\n") == "Segmentation fault"
    assert telling("") == ""
