"""A release of the chart whose gateway and operator are processes on this machine, or containers of their images."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from slipstream_tools.up.processes import Child

from tests.charts.conftest import JSON, Only
from tests.support.command import SLIPSTREAM
from tests.support.images import Image
from tests.support.kube import KubeApiServer
from tests.support.polling import eventually

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "cluster-embedded.yaml"
RBAC = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


class Release:
    """A release of the chart in a namespace: its rights in the API server, its processes on this machine."""

    def __init__(self, kube: KubeApiServer, objects: list[JSON], only: Only, namespace: str, folder: Path) -> None:
        self._kube, self.objects, self._only = kube, objects, only
        self.namespace, self.folder = namespace, folder
        self.processes = ExitStack()
        kube.client().apply_yaml([item for item in objects if item["kind"] in RBAC])

    def pods(self, component: str) -> JSON:
        """The template of its pods."""
        template = self._only(self.objects, "Deployment", f"-{component}")["spec"]["template"]
        assert isinstance(template, dict)
        return template

    def start(self, component: str, *, image: Image | None = None, **replaced: object) -> Child:
        """Its process, with those options of the chart replaced that are a matter of the machine; in a container of
        `image` if there is one."""
        pod = self.pods(component)["spec"]
        kubeconfig = self._kube.kubeconfig(f"{self.namespace}/{pod['serviceAccountName']}", namespace=self.namespace)
        options = {"host": "127.0.0.1", "kubeconfig": kubeconfig, **replaced}
        arguments = [
            *pod["containers"][0]["args"],
            *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()),
        ]
        env = {"POD_NAME": f"{component}-0", "POD_UID": "", "POD_NAMESPACE": self.namespace}
        if image is None:
            log_path = self.folder / f"{component}.log"
            child = Child(
                name=component, command=[*SLIPSTREAM, *arguments], log_path=log_path, env={**os.environ, **env}
            )
        else:
            files = {str(path): _for_everybody(path, self.folder) for path in (kubeconfig, self._kube.ca_file)}
            child = image.start(pod, arguments, folder=self.folder, files=files, env=env)
        self.processes.callback(child.stop, timeout_s=10.0)
        return child


def _for_everybody(path: Path, folder: Path) -> Path:
    """A copy that every user may read: a container has one of its own."""
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o644)
    return copy


def until(what: Callable[[], object], child: Child) -> Any:
    """What `what` returns once that is true."""

    def look() -> object:
        assert child.exit_status() is None, child.log_tail()
        return what()

    return eventually(look, seen=child.log_tail)


def answers(url: str) -> Callable[[], JSON | None]:
    def ask() -> JSON | None:
        try:
            answer = httpx.get(url, timeout=5)
        except httpx.HTTPError:
            return None
        return {"status": answer.status_code, "text": answer.text}

    return ask
