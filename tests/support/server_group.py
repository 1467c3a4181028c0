"""One group of a LeaderWorkerSet, on nodes of its own that can be drained, with real vLLM processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress

import httpx

from tests.support.kubelet import HOST, VllmKubelet
from tests.support.manifests import JSON
from tests.support.metrics import total
from tests.support.ports import lasting_ports

METRICS_LIMIT_S = 30.0


class ServerGroup(VllmKubelet):
    """What kubelets and LeaderWorkerSet's controller would do with the pods of one group, each on its own node.

    Where a pod of the group ends, the controller deletes all of them (`RecreateGroupOnPodRestart`). A deleted pod first
    leaves its EndpointSlice, then runs its hook `preStop`, then gets SIGTERM, and SIGKILL after its grace period.
    """

    def begin(self, group: JSON) -> None:
        """Start the group and wait until it is ready."""
        self._group = group
        self._service = group["metadata"]["name"].removesuffix("-group")
        for process in self.processes:
            process.log_path.unlink()
        self.processes.clear()
        self._master_port, *_ = lasting_ports(1)
        self.start_group(group)

    def node(self, rank: int) -> str:
        return f"{self._namespace}-{self._index}-{rank}"

    def answers(self) -> int:
        """The number of chats that it has begun to answer since `begin`."""
        return self.processes[0].log_path.read_text(errors="replace").count('"POST /v1/chat/completions HTTP/1.1" 200')

    def progress(self) -> tuple[float, float]:
        """The numbers of tokens that it has generated, and of answers of over 50 tokens that have ended."""
        page = httpx.get(f"http://{HOST}:{self.port}/metrics", timeout=METRICS_LIMIT_S).text
        lengths = "vllm:request_generation_tokens"
        long = total(page, f"{lengths}_count") - total(page, f"{lengths}_bucket", le="50.0")
        return total(page, "vllm:generation_tokens_total"), long

    def is_evicted(self) -> bool:
        """Whether the API server deletes a pod of the group."""
        return any("deletionTimestamp" in self._client.get(path)["metadata"] for path in self._paths())

    def kill_worker(self) -> None:
        """End the processes of the last node at once, as if it had lost its power."""
        os.killpg(self.processes[-1].pid, signal.SIGKILL)

    def end(self) -> None:
        """Delete the pods of the group together, as its controller does."""
        self._say_leaving(self._service)
        began_s = time.monotonic()
        grace_s = self._grace_s()
        waiting = dict(zip(self.processes, self._hooks_s(), strict=True))
        while waiting and time.monotonic() < began_s + grace_s:
            for process in [each for each, hook_s in waiting.items() if time.monotonic() >= began_s + hook_s]:
                process.terminate()
            waiting = {each: hook_s for each, hook_s in waiting.items() if each.exit_status() is None}
            time.sleep(0.05)
        for process in self.processes:
            process.stop(timeout_s=0)  # kills what is left
        for path in self._paths():
            self._client.delete(f"{path}?gracePeriodSeconds=0")
        self._say_slice(self._service, [])

    def stop(self) -> None:
        super().stop()
        with suppress(httpx.HTTPError):  # the API server may be gone by now
            for rank in range(2):
                self._client.delete(f"/api/v1/nodes/{self.node(rank)}")

    def _create_pod_of(self, template: JSON, name: str, labels: Mapping[str, str]) -> JSON:
        rank = int(labels["leaderworkerset.sigs.k8s.io/worker-index"])
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node(rank)}}
        if not self._client.exists(f"/api/v1/nodes/{self.node(rank)}"):
            self._client.create("/api/v1/nodes", node)
        placed = {**template, "spec": {**template["spec"], "nodeName": self.node(rank)}}
        return super()._create_pod_of(placed, name, labels)

    def _of_group(self) -> tuple[str, ...]:
        return ("--master-port", str(self._master_port))

    def _templates(self) -> tuple[JSON, ...]:
        of_group = self._group["spec"]["leaderWorkerTemplate"]
        return of_group["leaderTemplate"], *[of_group["workerTemplate"]] * (of_group["size"] - 1)

    def _grace_s(self) -> float:
        return float(self._templates()[0]["spec"]["terminationGracePeriodSeconds"])

    def _hooks_s(self) -> list[float]:
        containers = [container for each in self._templates() for container in each["spec"]["containers"]]
        return [float(each["lifecycle"]["preStop"]["exec"]["command"][1]) for each in containers]

    def _paths(self) -> list[str]:
        leader = f"{self._core}/pods/{self._group['metadata']['name']}-{self._index}"
        return [leader, *(f"{leader}-{rank}" for rank in range(1, len(self._templates())))]
