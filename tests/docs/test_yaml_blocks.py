"""YAML of the documentation: manifests are taken as `slipstream up -f` takes them, values as Helm does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart
from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_core.manifest.grants import read_grants

from tests.support.doc_blocks import ROOT, Block, runs, runs_each

RESOURCE = "apiVersion: slipstream.dev/v1alpha1\nkind: ModelPair\nmetadata: {name: pair}\n"


def manifest_of(text: str) -> str:
    """A part of a pair, made whole."""
    part: dict[str, Any] = next(iter(yaml.safe_load_all(text)))
    if "apiVersion" in part:
        return text
    spec = part.get("spec", part)
    return RESOURCE + yaml.safe_dump({"spec": {"model": "model", **spec}})


@runs_each(
    (
        "docs/howto/engines.md",
        "apiVersion: slipstream.dev/v1alpha1\nkind: ModelPair\nmetadata: {name: llama}\nspec:\n  model: llama-3.1-8b",
    ),
    (
        "docs/howto/engines.md",
        "apiVersion: slipstream.dev/v1alpha1\nkind: ModelPair\nmetadata: {name: llama}\nspec:\n  model: llama-70b",
    ),
    ("docs/howto/engines.md", "spec:\n  model: llama-3.1-8b"),
    ("docs/howto/vllm-triton.md", "apiVersion"),
    ("docs/tutorial/engine-and-model.md", "apiVersion"),
    ("docs/tutorial/own-pair.md", "apiVersion"),
)
def test_manifests_are_taken(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(manifest_of(block.text), encoding="utf-8")
    assert len(load_file(path).routes) == 1


@runs("docs/capture.md", "apiVersion")
def test_policies_are_taken(blocks: list[Block], tmp_path: Path) -> None:
    path = tmp_path / "support.yaml"
    pair = EMBEDDED_MANIFEST.read_text(encoding="utf-8").partition("---")[0].replace("name: embedded", "name: support")
    path.write_text(f"{pair}---\n{blocks[0].text}", encoding="utf-8")
    [route] = load_file(path).routes.values()
    assert route.policy is not None
    assert route.policy.spec.capture is not None
    assert route.policy.spec.capture.share_of("summarization/long") == 0.5


@runs_each(
    ("docs/kubernetes.md", "networkPolicy:\n  apiServer"),
    ("docs/kubernetes.md", "networkPolicy:\n  servers"),
    ("docs/howto/tenants.md", "gateway:\n  extraEnv"),
    ("docs/howto/tenants.md", "grants:"),
    ("docs/howto/monitoring.md", "monitoring:"),
)
def test_values_are_taken_by_the_chart(block: Block) -> None:
    values = yaml.safe_load(block.text)
    values["gateway"] = values.get("gateway", {}) | {"auth": {"allowAnonymous": True}}
    with Chart.load(ROOT / "charts" / "slipstream") as chart:
        chart.validate_schema(values)
        assert chart.render(values, name="demo", namespace="serving")


@runs_each(("docs/security.md", "apiKeys:"))
def test_grants_are_read(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "grants.yaml"
    path.write_text(block.text, encoding="utf-8")
    assert read_grants(path).api_keys


@pytest.mark.parametrize("text", ["spec: {engine: {kind: nothing}}", "engine: {kind: vllm, endpoint: x}"])
def test_a_part_that_is_wrong_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(manifest_of(text), encoding="utf-8")
    with pytest.raises(Exception, match="engine"):
        load_file(path)
