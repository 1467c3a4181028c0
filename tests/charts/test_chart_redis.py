"""The Redis that the chart runs where values name no other: it keeps what it holds, and its password over upgrades."""

from __future__ import annotations

import shutil
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from helm_python.chart import Chart
from helm_python.config import Config
from redis import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError
from redis.exceptions import ConnectionError as NotThereError

from tests.charts.conftest import JSON, Only, Render, before_1_22
from tests.support.kube import KubeApiServer
from tests.support.polling import PATIENCE_S, eventually

HOST = "@demo-slipstream-redis:6379/0"


def decoded(secret: JSON) -> dict[str, str]:
    return {key: b64decode(value).decode() for key, value in secret["data"].items()}


@pytest.mark.parametrize(
    "redis", [{"enabled": False}, {"url": "redis://cache:6379"}, {"existingSecret": {"name": "x"}}]
)
def test_values_that_name_another_replace_it(render: Render, redis: JSON) -> None:
    objects = render({"redis": redis})
    assert [item for item in objects if item["kind"] == "StatefulSet"] == []
    assert [item for item in objects if item["metadata"]["name"].endswith("-redis") and item["kind"] != "Secret"] == []


@pytest.mark.parametrize("password", ["", "p@ss word/+%"])
def test_one_password_in_two_forms(render: Render, only: Only, password: str) -> None:
    secret = decoded(only(render({"redis": {"password": password}}), "Secret", "-redis"))
    [_, configured, _] = secret["redis.conf"].partition("requirepass ")[2].split('"')
    assert configured == secret["password"]
    assert secret["url"].startswith("redis://:")
    assert secret["url"].endswith(HOST)
    if password:
        assert configured == password
        assert "p%40ss%20word%2F%2B%25" in secret["url"]
    else:
        assert len(configured) == 32


def test_volume_has_what_values_say_and_outlives_the_release(render: Render, only: Only) -> None:
    objects = render({"redis": {"storage": {"size": "4Gi", "className": "fast"}}})
    claim = only(objects, "PersistentVolumeClaim", "-redis")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "4Gi"}}
    assert "storageClassName" not in only(render(), "PersistentVolumeClaim", "-redis")["spec"]  # the cluster's default
    pod = only(objects, "StatefulSet", "-redis")["spec"]["template"]["spec"]
    source = {"claimName": claim["metadata"]["name"]}
    [volume] = [each["name"] for each in pod["volumes"] if each.get("persistentVolumeClaim") == source]
    [container] = pod["containers"]
    assert {"name": volume, "mountPath": container["workingDir"]} in container["volumeMounts"]


def test_pod_starts_again_when_its_configuration_changes(render: Render, only: Only) -> None:
    def template(redis: JSON) -> JSON:
        found: JSON = only(render({"redis": redis}), "StatefulSet", "-redis")["spec"]["template"]
        return found

    assert template({}) == template({})  # the password is made anew by each of these renderings
    assert template({"maxMemory": "64mb"}) != template({})
    assert template({"password": "another"}) != template({})


def test_second_upgrade_changes_nothing_of_it(kube: KubeApiServer, chart: Chart, namespace: str) -> None:
    """As Helm renders an upgrade: with a look at the cluster."""
    passwords, versions = upgrades(kube, chart, namespace, [{}, {}, {}, {"maxMemory": "64mb"}])
    assert len(set(passwords)) == 1
    # This server writes a claim once more when it is first applied again, with the same content.
    assert {kind for kind in versions[0] if versions[0][kind] != versions[1][kind]} <= {"PersistentVolumeClaim"}
    assert versions[1] == versions[2]
    assert {kind for kind in versions[2] if versions[2][kind] != versions[3][kind]} == {"Secret", "StatefulSet"}


def upgrades(
    kube: KubeApiServer, chart: Chart, namespace: str, releases: list[JSON]
) -> tuple[list[str], list[dict[str, str]]]:
    """The password after each release, and the version of each object of Redis."""
    passwords, versions = [], []
    with Config(kubeconfig_path=kube.kubeconfig(), namespace=namespace) as config:
        for redis in releases:
            values = {"gateway": {"auth": {"allowAnonymous": True}}, "redis": redis}
            files = config.render(chart, values, name="demo", namespace=namespace, is_upgrade=True)
            texts = [text for path, text in files.items() if "/redis" in path]
            objects = [before_1_22(item) for text in texts for item in yaml.safe_load_all(text)]
            applied = kube.client().apply_yaml(objects)
            versions.append({item["kind"]: item["metadata"]["resourceVersion"] for item in applied})
            passwords += [decoded(item)["password"] for item in applied if item["kind"] == "Secret"]
    assert set(versions[0]) == {"PersistentVolumeClaim", "Secret", "Service", "StatefulSet"}
    return passwords, versions


def test_a_real_redis_takes_the_configuration_and_forgets_nothing(
    render: Render, only: Only, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    objects = render({"redis": {"password": "p@ss word/+%"}})
    secret = decoded(only(objects, "Secret", "-redis"))
    [container] = only(objects, "StatefulSet", "-redis")["spec"]["template"]["spec"]["containers"]
    configuration = tmp_path / "redis.conf"
    configuration.write_text(secret["redis.conf"], encoding="utf-8")
    [port] = free_ports(1)
    url = secret["url"].replace(HOST, f"@127.0.0.1:{port}/0")
    assert container["command"] == ["redis-server"]
    with running(configuration, port, url) as redis:
        redis.set("slipstream:kept", "yes")
        with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
            stranger.get("slipstream:kept")
    with running(configuration, port, url) as redis:  # the one before was killed
        assert redis.get("slipstream:kept") == b"yes"
        assert redis.config_get("maxmemory", "maxmemory-policy") == {
            "maxmemory": str(128 << 20),
            "maxmemory-policy": "noeviction",
        }


@contextmanager
def running(configuration: Path, port: int, url: str) -> Iterator[Redis]:
    """Redis with its data beside `configuration`, once it answers; it is killed at the end."""
    binary = shutil.which("redis-server")
    assert binary, "install Debian's package redis-server"
    here = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(configuration.parent)]
    with subprocess.Popen([binary, str(configuration), *here], stdout=subprocess.DEVNULL) as process:
        try:
            with Redis.from_url(url, socket_timeout=PATIENCE_S) as client:
                wait_for(client, process)
                yield client
        finally:
            process.kill()


def wait_for(client: Redis, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert process.poll() is None, "redis-server ended"
        return bool(client.ping())

    eventually(answers, "redis-server's first answer", ignoring=(NotThereError, BusyLoadingError))
