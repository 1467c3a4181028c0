"""Weights from a hub, an image and a volume: what pods mount, and the real program `hf` run as their container says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slipstream_operator.reconcile.pods import PodReason, worst_problem

from tests.operator.downloads import downloads, mounts, problem_of, volumes, words
from tests.operator.pair_objects import JSON, SPEC, VLLM_SPEC, pair_object, template
from tests.support.model_hub import COMMIT, ModelHub

REPOSITORY = "acme/target"
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 4000, "tokenizer.json": b'{"version": 1}'}


def hub_pair(**changes: Any) -> JSON:
    target = {"source": f"hf://{REPOSITORY}@v1", "revision": None}
    return pair_object(VLLM_SPEC, target=target, draft={"kind": "ngram", "source": None}, **changes)


@pytest.mark.parametrize("spec", [SPEC, VLLM_SPEC], ids=["slipstream", "vllm"])
def test_a_model_of_a_hub_is_downloaded_to_the_pairs_volume_and_read_from_there(spec: JSON) -> None:
    raw = pair_object(spec, target={"source": f"hf://{REPOSITORY}@v1", "revision": None})
    pod = template(raw)["spec"]
    download, [server] = pod["initContainers"][0], pod["containers"]
    assert (download["name"], download["image"]) == ("weights", server["image"])
    assert volumes(raw)["weights"]["persistentVolumeClaim"] == {"claimName": "weights"}
    assert mounts(download)["weights"] == {"name": "weights", "mountPath": "/models"}
    assert mounts(server)["weights"] == {"name": "weights", "mountPath": "/models", "readOnly": True}
    assert words(download)[-4:] == ["hub", REPOSITORY, "v1", f"/models/hf/{REPOSITORY}/v1"]
    if spec is VLLM_SPEC:
        assert server["args"][0] == f"/models/hf/{REPOSITORY}/v1"


def test_further_drafts_are_downloaded_and_mounted_as_well() -> None:
    alternatives = [f"hf://{REPOSITORY}@v2", "pvc://heads/acme", "oci://models/tuned:1"]
    raw = pair_object(SPEC, draft={"alternatives": alternatives})
    pod = template(raw)["spec"]
    assert words(pod["initContainers"][0])[-4:] == ["hub", REPOSITORY, "v2", f"/models/hf/{REPOSITORY}/v2"]
    [server] = pod["containers"]
    paths = {mount["mountPath"] for mount in server["volumeMounts"]}
    assert any(path.endswith("claims/heads") for path in paths)
    assert any("images/" in path for path in paths)


def test_without_a_volume_each_pod_downloads_its_own() -> None:
    assert volumes(hub_pair(serving={"storage": None}))["weights"]["emptyDir"] == {}


def test_the_token_is_for_the_download_only() -> None:
    token = {"name": "HF_TOKEN", "secret": {"name": "hub", "key": "token"}}
    raw = hub_pair(serving={"env": [token, {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]})
    [server] = template(raw)["spec"]["containers"]
    of_download, of_server = ({each["name"] for each in one["env"]} for one in (downloads(raw), server))
    assert {"HF_TOKEN", "HTTPS_PROXY"} <= of_download
    assert "HF_TOKEN" not in of_server
    assert "HF_HUB_OFFLINE" in of_server - of_download


def test_images_and_claims_of_sources_are_mounted() -> None:
    raw = pair_object(
        VLLM_SPEC,
        target={"source": "oci://models/acme-70b:1", "revision": None},
        draft={"kind": "eagle3", "source": "pvc://heads/acme/v2"},
        serving={"storage": None},
    )
    [server] = template(raw)["spec"]["containers"]
    image = {"reference": "models/acme-70b:1", "pullPolicy": "IfNotPresent"}
    assert volumes(raw)["image-0"] == {"name": "image-0", "image": image}
    assert volumes(raw)["claim-0"]["persistentVolumeClaim"] == {"claimName": "heads", "readOnly": True}
    assert server["args"][0] == mounts(server)["image-0"]["mountPath"]
    assert mounts(server)["claim-0"]["mountPath"] == "/weights/claims/heads"
    assert any("/weights/claims/heads/acme/v2" in argument for argument in server["args"])
    assert "initContainers" not in template(raw)["spec"]


class Download:
    """Runs the container that downloads, with its volume below `folder`."""

    def __init__(self, folder: Path, name: str = "models") -> None:
        self._folder = folder
        self.models = folder / name

    def run(self, hub_url: str, **variables: str) -> subprocess.CompletedProcess[str]:
        mount = {"storage": {"claim": "weights", "mountPath": str(self.models)}}
        container = downloads(hub_pair(serving=mount))
        program = words(container)
        assert program[:2] == ["sh", "-c"]
        own = {each["name"]: each["value"] for each in container["env"]}
        environment = {
            **own,
            "HOME": str(self._folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HF_ENDPOINT": hub_url,
            **variables,
        }
        return subprocess.run(
            program, cwd=self._folder, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    def content(self) -> dict[str, bytes]:
        folder = self.models / "hf" / REPOSITORY / "v1"
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


@pytest.fixture
def download(tmp_path: Path) -> Download:
    return Download(tmp_path)


@pytest.fixture
def hub() -> Iterator[Callable[..., ModelHub]]:
    started: list[ModelHub] = []

    def start(**options: Any) -> ModelHub:
        started.append(ModelHub(REPOSITORY, FILES, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.integration
def test_a_download_is_checked_and_happens_once(download: Download, hub: Callable[..., ModelHub]) -> None:
    served = hub()
    done = download.run(served.url)
    assert done.returncode == 0, done.stderr
    assert download.content() == FILES
    assert f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors" in served.requested
    served.stop()
    again = download.run(served.url)  # the hub is gone
    assert again.returncode == 0, again.stderr
    assert "is complete" in again.stdout


@pytest.mark.integration
@pytest.mark.parametrize("name", ["it's", "a'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "two words;"])
def test_a_mount_path_is_no_program(name: str, tmp_path: Path, hub: Callable[..., ModelHub]) -> None:
    download = Download(tmp_path, name)
    done = download.run(hub().url)
    assert done.returncode == 0, done.stderr
    assert download.content() == FILES
    assert [path.name for path in tmp_path.iterdir() if path.name == "pwned"] == []


@pytest.mark.integration
def test_a_download_that_breaks_off_is_resumed(download: Download, hub: Callable[..., ModelHub]) -> None:
    done = download.run(hub(cut_after=300_000, cuts=2).url)
    assert done.returncode == 0, done.stderr
    assert download.content() == FILES


@pytest.mark.integration
def test_a_damaged_file_is_not_served(download: Download, hub: Callable[..., ModelHub]) -> None:
    served = hub()
    served.listed["model.safetensors"] = FILES["model.safetensors"][::-1]
    reason, _ = problem_of(hub_pair(), download.run(served.url))
    assert reason == PodReason.WEIGHTS_FAILED
    assert not list(download.models.rglob(".slipstream-complete"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "variables", "reason", "part"),
    [
        ({"token": "good"}, {}, PodReason.WEIGHTS_NOT_FOUND, "a private model needs HF_TOKEN in spec.serving.env"),
        ({"token": "good"}, {"HF_TOKEN": "bad"}, PodReason.WEIGHTS_NOT_FOUND, "Model 'acme/target' not found"),
        ({"is_gated": True}, {}, PodReason.WEIGHTS_DENIED, "requires approval"),
        ({"revisions": ("main",)}, {}, PodReason.WEIGHTS_NOT_FOUND, "Revision not found in model 'acme/target'"),
    ],
    ids=["no token", "wrong token", "gated", "no revision"],
)
def test_a_refusal_of_the_hub_is_one_clear_condition(
    download: Download,
    hub: Callable[..., ModelHub],
    options: JSON,
    variables: dict[str, str],
    reason: PodReason,
    part: str,
) -> None:
    found, message = problem_of(hub_pair(), download.run(hub(**options).url, **variables))
    assert found == reason
    assert part in message


@pytest.mark.integration
def test_a_token_gets_in(download: Download, hub: Callable[..., ModelHub]) -> None:
    assert download.run(hub(token="good").url, HF_TOKEN="good").returncode == 0


@pytest.mark.integration
def test_a_hub_that_is_not_reached_is_said(download: Download) -> None:
    reason, message = problem_of(hub_pair(), download.run("http://127.0.0.1:9"))
    assert reason == PodReason.WEIGHTS_UNREACHABLE
    assert "Connection refused" in message


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="a volume of a limited size is mounted, which needs root")
def test_a_full_disk_is_said(download: Download, hub: Callable[..., ModelHub]) -> None:
    download.models.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(download.models)], check=True)
    try:
        reason, message = problem_of(hub_pair(), download.run(hub().url))
    finally:
        subprocess.run(["umount", str(download.models)], check=True)
    assert reason == PodReason.DISK_FULL
    assert "No space left on device" in message


def test_a_running_download_is_shown() -> None:
    raw = hub_pair()
    running = {"name": "weights", "ready": False, "state": {"running": {"startedAt": "2026-11-26T06:00:00Z"}}}
    pod = {"metadata": {"name": "p", **template(raw)["metadata"]}, "status": {"initContainerStatuses": [running]}}
    problem = worst_problem([pod], None)
    assert problem is not None
    assert problem.reason is PodReason.DOWNLOADING_WEIGHTS
    assert problem.message == "pod p: downloads its weights since 2026-11-26T06:00:00Z"
