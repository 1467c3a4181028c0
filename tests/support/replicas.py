"""The Deployment controller and the kubelets for as many servers of a pair as its Deployment asks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.kube import KubeApiServer
from tests.support.kube_client import KubeClient
from tests.support.kubelet import TritonKubelet
from tests.support.manifests import JSON

_POLL_S = 0.1


class Replicas:
    """Servers of Triton for the Deployment `name`, started one after the other. `free_ports` gives ports that stay
    free.

    A removed server first leaves its EndpointSlice; after the container's hook `preStop` it gets SIGTERM.
    """

    def __init__(
        self, kube: KubeApiServer, namespace: str, name: str, folder: Path, free_ports: Callable[[int], list[int]]
    ) -> None:
        # Not the test's own: its connections are not to be shared between threads.
        self._client = KubeClient(kube.url, token=kube.token(), ca_file=kube.ca_file)
        self._path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
        self._make = lambda index: _Server(
            kube, self._client, namespace, name, folder / f"node-{index}", free_ports(3), index
        )
        self._ready: list[_Server] = []
        self._leaving: list[_Server] = []
        self._count = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replicas")  # it lives as long as the servers

    def __enter__(self) -> Replicas:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()
        if exc_info[0] is None and self._failure is not None:
            raise self._failure

    @property
    def ready(self) -> int:
        """The number of ready servers."""
        if self._failure is not None:
            raise self._failure
        return len(self._ready)

    @property
    def running(self) -> int:
        """The number of running servers, the leaving ones included."""
        return self.ready + len(self._leaving)

    def _run(self) -> None:
        try:
            while not self._over.wait(_POLL_S):
                if self._client.exists(self._path):
                    self._look(self._client.get(self._path))
        except BaseException as exc:  # shown by the test
            self._failure = exc
        finally:
            for server in (*self._ready, *self._leaving):
                server.stop()
            self._client.close()

    def _look(self, deployment: JSON) -> None:
        wanted = deployment["spec"]["replicas"]
        if wanted > len(self._ready):
            server = self._make(self._count)
            self._count += 1
            server.begin(deployment)
            self._ready.append(server)
        while wanted < len(self._ready):
            server = self._ready.pop()
            server.leave()
            self._leaving.append(server)
        for server in [each for each in self._leaving if each.leaves_s <= time.monotonic()]:
            server.end()
            self._leaving.remove(server)
        self._say(deployment)

    def _say(self, deployment: JSON) -> None:
        number = len(self._ready)
        counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), number)
        status = {"observedGeneration": deployment["metadata"]["generation"], **counts}
        if any((deployment.get("status") or {}).get(name, 0) != value for name, value in status.items()):
            self._client.patch_status(self._path, status)


class _Server(TritonKubelet):
    def __init__(
        self,
        kube: KubeApiServer,
        client: KubeClient,
        namespace: str,
        service: str,
        folder: Path,
        ports: list[int],
        index: int,
    ) -> None:
        named = dict(zip(("grpc", "http", "metrics"), ports, strict=True))
        super().__init__(kube, namespace, folder, named, index=index)
        self._client = client
        folder.mkdir()
        self.leaves_s = 0.0
        self._service = service
        self._hook_s = 0.0

    def begin(self, deployment: JSON) -> None:
        pod = self._create_pod(deployment)
        report = self._run_preflight(pod)
        self.start_server(pod)
        [container] = pod["spec"]["containers"]
        command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        self._hook_s = float(seconds)
        self._say_ready(pod, report)
        self._say_endpoint(self._service)

    def leave(self) -> None:
        self._say_leaving(self._service)
        self.leaves_s = time.monotonic() + self._hook_s

    def end(self) -> None:
        self.stop()
        self._client.delete(f"{self._core}/pods/{self._service}-{self._index}")
        self._say_slice(self._service, [])
