"""What the Deployment of a pair takes for granted of the image that runs in it."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.operator.pair_objects import JSON, UID, children, pair_object, template
from tests.support.foreign_kinds import parts_of_kubernetes

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "docker" / "triton.Dockerfile").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))


def test_the_image_has_the_user_that_pods_run_as():
    security = template(pair_object())["spec"]["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in DOCKERFILE


@pytest.mark.integration
def test_the_image_has_the_python_of_the_engine_first():
    [preflight] = template(pair_object())["spec"]["initContainers"]
    assert preflight["command"][0] == "python"
    assert "PATH=/opt/slipstream/venv/bin:${PATH}" in DOCKERFILE
    assert re.search(r"venv/bin/pip install .*\[engine,gpu,drafts\]", DOCKERFILE)


def test_the_image_listens_where_the_service_points():
    ports = [port["port"] for port in children(pair_object())["Service"]["spec"]["ports"]]
    [exposed] = re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)
    assert sorted(map(str, ports)) == sorted(exposed.split())


def test_the_images_own_repository_is_out_of_the_way():
    [server] = template(pair_object())["spec"]["containers"]
    [own] = re.findall(r"^COPY deploy/model_repository/slipstream (/\S+)/slipstream$", DOCKERFILE, re.MULTILINE)
    assert not any(mount["mountPath"].startswith(own) for mount in server["volumeMounts"])


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_children_of_the_examples_are_valid(file: Path):
    pairs: list[JSON] = [raw for raw in yaml.safe_load_all(file.read_text()) if raw and raw["kind"] == "ModelPair"]
    assert pairs
    for raw in pairs:
        raw["metadata"] |= {"namespace": "prod", "uid": UID, "generation": 1}
        for child in children(raw).values():
            for part in parts_of_kubernetes(child):
                kubernetes_validate.validate(part, "1.37", strict=True)
