"""`slipstream keys --secret` against a real API server."""

from __future__ import annotations

import base64
import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from slipstream_core.errors import NotAuthenticated
from slipstream_gateway.access import KeyFile, Keyring
from slipstream_gateway.access.key_text import new_key
from slipstream_gateway.access.records import KeyRecord
from slipstream_tools.cli import main
from slipstream_tools.keys import changes
from slipstream_tools.keys.places import SecretName
from slipstream_tools.keys.secret_place import SecretPlace

from tests.support.kube import KubeApiServer

NOW_S = 1_800_000_000.0


def mounted(kube: KubeApiServer, namespace: str, folder: Path) -> Keyring:
    """What a pod that mounts the Secret goes by."""
    data = kube.client().get(f"/api/v1/namespaces/{namespace}/secrets/keys")["data"]
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))
    return KeyFile(folder / "keys.json", None).load()


def run(kube: KubeApiServer, namespace: str, *arguments: str, user: str = "admin") -> str:
    out, err = io.StringIO(), io.StringIO()
    where = ("--secret", f"{namespace}/keys", "--kubeconfig", str(kube.kubeconfig(user)))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["keys", arguments[0], *where, *arguments[1:]])
    return out.getvalue().strip() if code == 0 else f"failed: {err.getvalue()}"


def test_keys_live_in_a_secret_as_pods_mount_it(kube: KubeApiServer, namespace: str, tmp_path: Path) -> None:
    text = run(kube, namespace, "create", "--name", "ci", "--requests-per-minute", "60")
    ring = mounted(kube, namespace, tmp_path)
    assert ring.authenticate(text, NOW_S).limits.requests_per_minute == 60
    other = run(kube, namespace, "rotate", "ci", "--grace", "0s")
    run(kube, namespace, "create", "--name", "second")
    assert "second" in run(kube, namespace, "list")
    ring = mounted(kube, namespace, tmp_path)
    assert ring.authenticate(other, NOW_S).name == "ci"
    with pytest.raises(NotAuthenticated):
        ring.authenticate(text, NOW_S)
    run(kube, namespace, "revoke", "ci")
    with pytest.raises(NotAuthenticated):
        mounted(kube, namespace, tmp_path).authenticate(other, NOW_S)
    assert "there is no key 'nobody'" in run(kube, namespace, "revoke", "nobody")
    assert "forbidden" in run(kube, namespace, "create", user="gateway")


def test_exported_file_is_the_secret_that_kubectl_applies(
    kube: KubeApiServer, namespace: str, tmp_path: Path, keys: Any
) -> None:
    text = keys.create()
    manifest = keys.run("export", "--as", f"{namespace}/keys")
    assert text.rpartition("-")[2] not in manifest
    assert yaml.safe_load(manifest)["kind"] == "Secret"
    kube.kubectl("apply", "-f", "-", input=manifest, namespace=namespace)
    mount = tmp_path / "mount"
    mount.mkdir()
    assert mounted(kube, namespace, mount).authenticate(text, NOW_S)


@pytest.mark.parametrize("name", ["1e3", "0o17", "y", "n", "12345", "null", "0777", "2026-11-28", "true", "0x1f"])
def test_exported_secret_has_a_name_that_looks_like_another_type(
    kube: KubeApiServer, namespace: str, keys: Any, name: str
) -> None:
    keys.create()
    kube.kubectl("apply", "-f", "-", input=keys.run("export", "--as", f"{namespace}/{name}"), namespace=namespace)
    kube.kubectl("get", "secret", name, namespace=namespace)


def test_two_writers_lose_no_key(kube: KubeApiServer, namespace: str, tmp_path: Path) -> None:
    """The second one's change is made again on what the first one wrote."""
    place = SecretPlace(SecretName(namespace, "keys"), kubeconfig=kube.kubeconfig(), context=None)
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda name: run_alone(place, name), ("a", "b", "c", "d")))
    ring = mounted(kube, namespace, tmp_path)
    assert [ring.authenticate(text, NOW_S).name for text in texts] == ["a", "b", "c", "d"]


def run_alone(place: Any, name: str) -> str:
    """A key that is made without a command: commands share their standard output here."""
    key = new_key()
    record = KeyRecord(id=key.id, name=name, hash="0" * 64, created=datetime.now(UTC))
    place.change(lambda file, pepper: changes.create(file, pepper, key, record), create=True)
    return key.text


def test_what_gateways_could_not_read_is_not_written(kube: KubeApiServer, namespace: str, tmp_path: Path) -> None:
    assert "name" in run(kube, namespace, "create", "--name", "x" * 200)
    text = run(kube, namespace, "create", "--name", "good")
    assert "requests_per_minute" in run(kube, namespace, "create", "--requests-per-minute", "2000000000")
    assert mounted(kube, namespace, tmp_path).authenticate(text, NOW_S).name == "good"
