"""The container that downloads weights, and the status of a pair whose download ended."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

from slipstream_core.manifest.status import Condition
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed

from tests.operator.pair_objects import JSON, live_deployment, template

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def downloads(raw: JSON) -> JSON:
    """The init container `weights`."""
    [container] = (each for each in template(raw)["spec"]["initContainers"] if each["name"] == "weights")
    return container


def words(container: JSON) -> list[str]:
    """The command with its arguments, as Kubernetes passes them to the program."""
    return [word.replace("$$", "$") for word in [*container["command"], *container["args"]]]


def volumes(raw: JSON) -> dict[str, JSON]:
    return {volume["name"]: volume for volume in template(raw)["spec"]["volumes"]}


def mounts(container: JSON) -> dict[str, JSON]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def problem_of(raw: JSON, done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The reason and message that the pair's status shows for a pod whose download failed like this."""
    assert done.returncode != 0
    log = (done.stdout + done.stderr)[-2048:]
    ready = condition_of(raw, {"exitCode": done.returncode, "reason": "Error", "message": log}, type="Ready")
    return ready.reason, ready.message


def condition_of(raw: JSON, *ends: JSON, type: str) -> Condition:
    """A condition of the pair whose pods' downloads ended in `ends`."""
    pods = tuple(
        {
            "metadata": {"name": f"p{index}", **template(raw)["metadata"]},
            "status": {
                "initContainerStatuses": [
                    {
                        "name": "weights",
                        "ready": end["exitCode"] == 0,
                        "restartCount": 0,
                        "state": {"terminated": end},
                    }
                ]
            },
        }
        for index, end in enumerate(ends)
    )
    plan = reconcile_pair(Observed(raw=raw, deployment=live_deployment(raw, ready=0), pods=pods), NOW)
    [found] = [condition for condition in plan.status.conditions if condition.type == type]
    return found
