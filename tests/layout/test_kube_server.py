"""The API server that tests talk to is a real one: rights, kubectl, data that outlive it, and how it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.kube import KubeApiServer, KubeError, find_assets, once_allowed
from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.integration

ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: gateway}
- {kind: ServiceAccount, name: robot, namespace: NAMESPACE}
"""
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "blue"}}


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    with KubeApiServer(tmp_path_factory.mktemp("own-kube")) as server:
        yield server


def test_user_without_a_role_is_denied_and_with_one_may_do_that_alone(kube: KubeApiServer, namespace: str) -> None:
    configs = f"/api/v1/namespaces/{namespace}/configmaps"
    kube.client().create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "robot"}})
    for user in ("gateway", f"{namespace}/robot"):
        with pytest.raises(KubeError, match="forbidden") as denied:
            kube.client(user).items(configs)
        assert denied.value.status == 403

    kube.client().apply_yaml(ROLE.replace("NAMESPACE", namespace), namespace=namespace)
    kube.client().apply_yaml([CONFIG], namespace=namespace)

    for user in ("gateway", f"{namespace}/robot"):
        found = once_allowed(partial(kube.client(user).items, configs))
        assert [item["data"] for item in found] == [CONFIG["data"]]
        with pytest.raises(KubeError, match="forbidden"):
            kube.client(user).delete(f"{configs}/settings")


def test_kubectl_reads_and_patches(kube: KubeApiServer, namespace: str) -> None:
    kube.client().apply_yaml([CONFIG], namespace=namespace)
    kube.kubectl("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"size":"9"}}', namespace=namespace)
    sizes = kube.kubectl("get", "cm", "settings", "-o", "jsonpath={.data}", namespace=namespace)
    assert sizes == '{"colour":"blue","size":"9"}'
    with pytest.raises(KubeError, match='"absent" not found'):
        kube.kubectl("get", "configmap", "absent", namespace=namespace)


def test_namespaces_of_two_tests_share_nothing(kube: KubeApiServer, namespace: str) -> None:
    kube.client().apply_yaml([CONFIG], namespace=namespace)
    assert kube.client().items(f"/api/v1/namespaces/{kube.namespace(namespace + '-2')}/configmaps") == []


def test_stopped_server_refuses_and_comes_back_with_its_data(own_server: KubeApiServer) -> None:
    client, port = own_server.client(), own_server.port
    client.apply_yaml([CONFIG])
    own_server.stop()
    with pytest.raises(httpx.ConnectError):
        client.get("/api/v1/namespaces/default/configmaps/settings")
    own_server.start()
    assert own_server.port == port
    assert client.get("/api/v1/namespaces/default/configmaps/settings")["data"] == CONFIG["data"]


def test_halted_server_lets_its_clients_time_out(own_server: KubeApiServer) -> None:
    client = own_server.client()
    assert client.get("/version")
    own_server.halt()
    try:
        with pytest.raises(httpx.TimeoutException):
            client._http.get("/version", timeout=0.3)  # over the connection that is open; impatient only here
    finally:
        own_server.resume()
    assert client.get("/version")["major"] == "1"


def test_watch_from_before_a_restart_is_gone(own_server: KubeApiServer) -> None:
    configs = "/api/v1/namespaces/default/configmaps"
    version = own_server.client().get(configs)["metadata"]["resourceVersion"]
    for size in range(3):
        own_server.client().apply_yaml([{**CONFIG, "data": {"size": str(size)}}])
    own_server.restart()
    answer = own_server.client().text(f"{configs}?watch=true&timeoutSeconds=5&resourceVersion={version}")
    assert '"code":410' in answer


def test_missing_programs_name_the_script_that_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(KubeError, match=r"no etcd and no kube-apiserver in .*\.ci/build-apiserver"):
        find_assets()


def test_script_prints_the_folder_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[2] / ".ci" / "build-apiserver"
    done = subprocess.run(
        [str(script), str(find_assets())], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert Path(done.stdout.splitlines()[-1]) == find_assets()
