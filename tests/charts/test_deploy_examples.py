"""The examples are what they say: our parser, a real API server and the operator take each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from slipstream_core.manifest import EMBEDDED_MANIFEST, ModelPair, SlipstreamEngine, VllmEngine, parse, parse_resource
from slipstream_core.manifest.engines import DialectName
from slipstream_core.manifest.naming import child_name
from slipstream_core.manifest.table import compile_route
from slipstream_operator.children.all import children_of
from slipstream_operator.types import ServingDefaults

from tests.support.foreign_kinds import WITH_GROUPS, parts_of_kubernetes
from tests.support.kube import KubeApiServer
from tests.support.manifests import JSON

FOLDER = Path(__file__).parents[2] / "deploy" / "examples"
MANIFESTS = [EMBEDDED_MANIFEST, *sorted(FOLDER.glob("*.yaml"))]
FOR_CLUSTERS = [path for path in MANIFESTS if path.name.startswith(("cluster-", "rollout-"))]
COMPANIONS = [FOLDER / "kubernetes" / name for name in ("autoscaler.yaml", "weights-volume.yaml")]
RECENT = "1.35"

every_manifest = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
every_cluster_manifest = pytest.mark.parametrize("path", FOR_CLUSTERS, ids=lambda path: path.stem)


def documents(path: Path) -> list[JSON]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def pairs(path: Path) -> list[ModelPair]:
    return [item for item in parse(path.read_text()) if isinstance(item, ModelPair)]


def companion(name: str) -> JSON:
    [found] = documents(FOLDER / "kubernetes" / name)
    return found


@every_manifest
def test_example_is_whole_for_the_strict_parser(path: Path) -> None:
    for document in documents(path):
        found = parse_resource(document, lenient=False)
        assert (found.problems, found.ignored) == ((), ())
        assert not found.killed


@every_manifest
def test_example_names_no_kill_switch(path: Path) -> None:
    assert "killSwitch" not in path.read_text()


@pytest.mark.parametrize("name", ["cluster-vllm", "cluster-sglang", "cluster-trtllm"])
def test_example_for_gpus_says_on_top_that_none_has_run_it(name: str) -> None:
    head = FOLDER.joinpath(f"{name}.yaml").read_text().split("apiVersion:")[0]
    assert re.search(r"# .*No (GPU|SGLang|TensorRT-LLM) has run", head)


def test_examples_reach_from_one_gpu_to_two_nodes() -> None:
    """GPUs on each node and nodes of each server, with the method of drafting."""
    sizes = [
        (pair.spec.serving.gpus, pair.spec.serving.nodes, pair.spec.draft.kind)
        for pair in pairs(FOLDER / "cluster-vllm.yaml")
        if pair.spec.serving is not None and pair.spec.draft is not None
    ]
    assert sizes == [(1, 1, "ngram"), (4, 1, "eagle3"), (8, 2, "mtp")]


@pytest.mark.parametrize("dialect", [DialectName.SGLANG, DialectName.TRTLLM])
def test_example_of_a_foreign_engine_has_two_pools_that_speak_its_dialect(dialect: DialectName) -> None:
    [pair] = pairs(FOLDER / f"cluster-{dialect}.yaml")
    route = compile_route(pair, None)
    assert route.speculative is not None
    assert {route.plain.dialect, route.speculative.dialect} == {dialect}
    assert set(route.plain.endpoints).isdisjoint(route.speculative.endpoints)


@every_manifest
def test_server_takes_the_example(path: Path, kube: KubeApiServer, crds: object, namespace: str) -> None:
    done = kube.kubectl("apply", "--filename", str(path), "--output=name", namespace=namespace)
    assert len(done.splitlines()) == len(documents(path))
    listed = kube.kubectl("get", "mp,sp", "--output=name", namespace=namespace)
    assert sorted(listed.splitlines()) == sorted(done.splitlines())


@every_cluster_manifest
def test_operator_makes_valid_children_of_the_example(path: Path) -> None:
    for pair in pairs(path):
        children = children_of(pair, uid="u", defaults=ServingDefaults(foreign_kinds=WITH_GROUPS), live=None)
        is_started = isinstance(pair.spec.engine, SlipstreamEngine | VllmEngine) and not pair.spec.engine.endpoints
        assert bool(children) == is_started
        for child in children:
            for part in parts_of_kubernetes(child):
                kubernetes_validate.validate(part, RECENT, strict=True)


@pytest.mark.parametrize("path", COMPANIONS, ids=lambda path: path.stem)
def test_objects_beside_the_examples_are_valid(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, RECENT, strict=True)


def test_claims_of_the_examples_are_the_one_that_is_there() -> None:
    claims = {
        pair.spec.serving.storage.claim
        for path in FOR_CLUSTERS
        for pair in pairs(path)
        if pair.spec.serving is not None and pair.spec.serving.storage is not None
    }
    assert claims == {companion("weights-volume.yaml")["metadata"]["name"]}


def test_autoscaler_scales_a_pair_that_leaves_its_replicas_alone() -> None:
    target = companion("autoscaler.yaml")["spec"]["scaleTargetRef"]["name"]
    [pair] = [pair for pair in pairs(FOLDER / "cluster-multi-node.yaml") if child_name(pair.metadata.name) == target]
    assert pair.spec.serving is not None
    assert pair.spec.serving.replicas is None
    [deployment] = [
        child
        for child in children_of(pair, uid="u", defaults=ServingDefaults(), live=None)
        if child["kind"] == "Deployment"
    ]
    assert deployment["metadata"]["name"] == target
    assert "replicas" not in deployment["spec"]


def test_example_values_are_values_of_the_chart(render: Callable[..., list[JSON]]) -> None:
    values = yaml.safe_load((FOLDER / "kubernetes" / "values-production.yaml").read_text())
    kinds = {item["kind"] for item in render(values)}
    assert {"HorizontalPodAutoscaler", "NetworkPolicy", "ServiceMonitor", "PrometheusRule"} <= kinds
    assert "Secret" not in kinds
