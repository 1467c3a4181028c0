"""A real Kubernetes API server for tests and benchmarks: etcd and kube-apiserver on loopback ports.

There is no kubelet, scheduler or controller manager: nothing but the API server writes. A test plays the others by
writing status, and nothing collects garbage: children stay when their owner goes, and a deleted namespace stays
"Terminating". Namespaces separate tests instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self, TypeVar

import httpx
import yaml
from helm_python import Chart
from slipstream_tools.up.processes import Child

from tests.support.kube_client import KubeClient, KubeError
from tests.support.manifests import JSON
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.support.programs import assets_folder, missing_assets

__all__ = [
    "ADMIN",
    "CRDS",
    "USERS",
    "KubeApiServer",
    "KubeClient",
    "KubeError",
    "find_assets",
    "install_chart",
    "install_definitions",
    "once_allowed",
]

ADMIN = "admin"
CRDS = Path(__file__).parents[2] / "charts" / "slipstream-crds"
USERS = (ADMIN, "operator", "gateway")  # The last two may do nothing until a binding says so.
STOP_TIMEOUT_S = 5.0
_HOST = "127.0.0.1"

Found = TypeVar("Found")


def find_assets() -> Path:
    """The folder with `etcd` and `kube-apiserver`."""
    folder = assets_folder()
    if missing := missing_assets():
        raise KubeError(
            f"no {' and no '.join(missing)} in {folder}: run .ci/build-apiserver, or set KUBEBUILDER_ASSETS to a "
            "folder that has them"
        )
    return folder


class KubeApiServer:
    """A running API server with its etcd; `with KubeApiServer(folder) as kube:` ends both, whatever happens.

    It must be started from a thread that lives as long as the program (see `Child`).
    """

    def __init__(self, folder: Path) -> None:
        """`folder` keeps its data, certificates, kubeconfigs and logs."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._assets = find_assets()
        self._etcd_port, self._peer_port, self.port = lasting_ports(3)
        self._etcd: Child | None = None
        self._server: Child | None = None
        self._halted = False
        self._clients: dict[str, KubeClient] = {}
        self._tokens = {user: f"token-of-{user}" for user in USERS}
        self._write_secrets()

    @property
    def url(self) -> str:
        return f"https://{_HOST}:{self.port}"

    @property
    def ca_file(self) -> Path:
        """The certificate that clients verify the server by; there once it has started."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def log_path(self) -> Path:
        return self.folder / "kube-apiserver.log"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start what does not run, and wait until requests are served.

        Raises:
            KubeError: it ended, or is not ready in time; the message has the end of its log.
        """
        if self._etcd is None:
            self._etcd = self._child("etcd", self._etcd_flags())
        if self._server is None:
            self._server = self._child("kube-apiserver", self._server_flags())
        self._wait_ready(self._server)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the API server; its data stay, and `start` brings it back on the same port. SIGKILL: at once."""
        if self._server is None:
            return
        self.resume()
        os.kill(self._server.pid, number)
        self._server.stop(timeout_s=STOP_TIMEOUT_S)
        self._server = None

    def restart(self) -> None:
        """Every connection and watch ends; a watch from before is answered with 410 Gone."""
        self.stop(signal.SIGKILL)
        self.start()

    def halt(self) -> None:
        """Stop it from answering while its connections stay open, as a hung machine does; `resume` ends that."""
        if self._server is None:
            raise KubeError("the API server does not run: there is nothing to halt")
        os.kill(self._server.pid, signal.SIGSTOP)
        self._halted = True

    def resume(self) -> None:
        """Undo `halt`; does nothing when it is not halted."""
        if self._halted and self._server is not None:
            os.kill(self._server.pid, signal.SIGCONT)
        self._halted = False

    def close(self) -> None:
        """End the API server and its etcd."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self.stop(signal.SIGKILL)
        if self._etcd is not None:
            self._etcd.stop(timeout_s=STOP_TIMEOUT_S)
            self._etcd = None

    def client(self, user: str = ADMIN) -> KubeClient:
        """A client with the rights of `user` (see `token`); it is closed with the server."""
        if user not in self._clients:
            self._clients[user] = self._new_client(user)
        return self._clients[user]

    def _new_client(self, user: str) -> KubeClient:
        return KubeClient(self.url, token=self.token(user), ca_file=self.ca_file)

    def token(self, user: str = ADMIN) -> str:
        """The bearer token of one of `USERS`, or of the service account that `NAMESPACE/NAME` names (it must exist)."""
        if user not in self._tokens:
            namespace, _, name = user.partition("/")
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
            self._tokens[user] = self.client().create(path, request)["status"]["token"]
        return self._tokens[user]

    def kubeconfig(self, user: str = ADMIN, *, namespace: str = "default") -> Path:
        """A kubeconfig file for `user` (see `token`), with `namespace` as its default one."""
        path = self.folder / f"kubeconfig-{user.replace('/', '.')}-{namespace}.yaml"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        context = {"cluster": "test", "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        path.chmod(0o600)
        return path

    def kubectl(self, *arguments: str, input: str | None = None, user: str = ADMIN, namespace: str = "default") -> str:
        """What `kubectl` prints.

        Raises:
            KubeError: it failed, with what it wrote to its standard error.
        """
        done = subprocess.run(
            [_kubectl(), "--kubeconfig", str(self.kubeconfig(user, namespace=namespace)), *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "HOME": str(self.folder)},  # Its discovery cache lies under HOME.
        )
        if done.returncode:
            raise KubeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def namespace(self, name: str) -> str:
        """Make a namespace, and return its name."""
        self.client().create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def _write_secrets(self) -> None:
        groups = {ADMIN: '"system:masters"'}
        lines = [f"{token},{user},{user},{groups.get(user, '')}" for user, token in self._tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        key = ("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self._key_path))
        subprocess.run(["openssl", *key], capture_output=True, check=True)

    @property
    def _key_path(self) -> Path:
        return self.folder / "service-accounts.key"

    def _child(self, name: str, flags: Mapping[str, object]) -> Child:
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        # Go collects garbage at half again the live heap instead of twice: its memory matters more than its time here.
        env = {**os.environ, "GOGC": "50"}
        command = [str(self._assets / name), *arguments]
        return Child(name=name, command=command, log_path=self.folder / f"{name}.log", env=env)

    def _etcd_flags(self) -> dict[str, object]:
        client, peer = (f"http://{_HOST}:{port}" for port in (self._etcd_port, self._peer_port))
        return {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",  # Nothing here has to survive a power cut.
        }

    def _server_flags(self) -> dict[str, object]:
        return {
            "etcd-servers": f"http://{_HOST}:{self._etcd_port}",
            "secure-port": self.port,
            "bind-address": _HOST,
            "cert-dir": self.folder / "certs",
            "service-account-key-file": self._key_path,
            "service-account-signing-key-file": self._key_path,
            "service-account-issuer": "https://kubernetes.default.svc",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/16",
            "disable-admission-plugins": "ServiceAccount",  # It waits for a controller that is not there.
            "endpoint-reconciler-type": "none",
            "default-watch-cache-size": 1000,
            "profiling": "false",
        }

    def _wait_ready(self, server: Child) -> None:
        def is_ready() -> bool:
            for child in (self._etcd, server):
                if child is not None and (status := child.exit_status()) is not None:
                    raise KubeError(f"{child.name} {status} while starting:\n{child.log_tail()}")
            return self._not_ready() is None

        eventually(is_ready, "the API server", seen=lambda: f"{self._not_ready()}\n{server.log_tail()}")

    def _not_ready(self) -> str | None:
        """Why it takes no requests yet; None when it does."""
        if not self.ca_file.is_file():
            return "no certificate yet"
        try:
            with closing(self._new_client(ADMIN)) as probe:
                probe.text("/readyz")
                probe.get("/api/v1/namespaces/default")  # made by the server itself, a moment after it is ready
        except (KubeError, httpx.HTTPError, OSError) as exc:  # OSError: half of a certificate
            return str(exc)
        return None


def install_chart(server: KubeApiServer, chart: Path, *, namespace: str = "default") -> None:
    """Apply what a Helm chart renders with its own values, and wait until the CRDs in it are served."""
    rendered = Chart.load(chart).render(name="test", namespace=namespace)
    documents = [item for text in rendered.values() for item in yaml.safe_load_all(text) if item]
    definitions = [item for item in documents if item["kind"] == "CustomResourceDefinition"]
    server.client().apply_yaml([item for item in documents if item not in definitions], namespace=namespace)
    install_definitions(server, definitions)


def install_definitions(server: KubeApiServer, definitions: Sequence[JSON]) -> None:
    """Create CRDs that do not exist, and wait until all are served."""
    crds = [server.client().path_of(item) for item in definitions]
    for path, item in zip(crds, definitions, strict=True):
        # Not applied: this server drops CEL rules, which it does not know, from what is created, but refuses to apply.
        if not server.client().exists(path):
            server.client().create(path.rpartition("/")[0], item)
    eventually(lambda: all(_is_served(server.client(), path) for path in crds), f"served: {', '.join(crds)}")


def _is_served(client: KubeClient, path: str) -> bool:
    """Whether the kind is established, and the discovery of its group names it: that follows a moment later."""
    crd = client.get(path)
    conditions = crd.get("status", {}).get("conditions") or ()  # null at first
    if not any((entry["type"], entry["status"]) == ("Established", "True") for entry in conditions):
        return False
    spec = crd["spec"]
    groups = [f"/apis/{spec['group']}/{version['name']}" for version in spec["versions"] if version["served"]]
    return all(client.exists(group) and _is_listed(client.get(group), spec) for group in groups)


def _is_listed(group: JSON, spec: JSON) -> bool:
    return any(resource["name"] == spec["names"]["plural"] for resource in group["resources"])


def _kubectl() -> str:
    found = shutil.which("kubectl")
    if found is None:
        raise KubeError("no kubectl on the path: Debian's package is kubernetes-client")
    return found


def once_allowed(call: Callable[[], Found]) -> Found:
    """What `call` gives. Rights that were granted just now may be used: the server hears of them a moment later.

    Raises:
        KubeError: as `call`, unless it is forbidden.
    """
    answers: list[Found] = []

    def is_allowed() -> bool:
        try:
            answers.append(call())
        except KubeError as exc:
            if exc.status != httpx.codes.FORBIDDEN:
                raise
        return bool(answers)

    eventually(is_allowed, "the granted rights")
    return answers[0]
