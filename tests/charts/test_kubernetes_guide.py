"""The pages about clusters: their commands are taken by what they are for, and what they name exists."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml
from helm_python.chart import Chart
from slipstream_core.manifest.resources import parse_resource
from slipstream_core.manifest.status import ConditionType
from slipstream_operator.reconcile.pods import PodReason
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.rollout.trips import REASONS
from slipstream_tools.kill.options import add_arguments

from tests.support.kube import KubeApiServer
from tests.support.manifests import JSON

ROOT = Path(__file__).parents[2]
PAGES = (
    *("tutorial/cluster.md", "howto/upgrading.md", "kubernetes.md", "howto/tenants.md", "howto/cluster-servers.md"),
    *("howto/changes.md", "conditions.md"),
)
GUIDE = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
COMMANDS = [
    line for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines() if line
]
EMBEDDED = ROOT / "deploy" / "examples" / "cluster-embedded.yaml"
PAIRS = "/apis/slipstream.dev/v1alpha1/namespaces/{}/modelpairs"


def commands(*beginning: str) -> list[list[str]]:
    """The words of those commands after their beginning."""
    found = [shlex.split(line) for line in COMMANDS if line.startswith(" ".join(beginning))]
    assert found, beginning
    return [words[len(beginning) :] for words in found]


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"\b(?:tests/)?(?:deploy|charts)/[\w./-]*\w", GUIDE))
    assert len(named) >= 8
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_kill_commands_are_taken_by_the_command_line() -> None:
    for command in ("kill", "unkill"):
        for words in commands("slipstream", command):
            parser = argparse.ArgumentParser(exit_on_error=False)
            add_arguments(parser)
            found = parser.parse_args(words)
            assert (found.object, found.namespace, found.report_namespace) == (
                "modelpair/embedded",
                "demo",
                "slipstream",
            )


def test_charts_are_installed_and_upgraded_the_kinds_first() -> None:
    for command in (("helm", "upgrade", "--install"), ("helm", "upgrade")):
        charts = [words[1] for words in commands(*command) if words[0] != "--install"]
        assert charts == ["charts/slipstream-crds", "charts/slipstream"]


def test_values_that_are_named_exist(chart: Chart) -> None:
    schema = chart.schema
    assert schema is not None
    tops = "|".join(key for key in schema["properties"] if key != "global")
    named = set(re.findall(rf"`(?:--set )?((?:{tops})\.[\w.]+)", GUIDE)) | {
        words.split("=")[0] for line in COMMANDS for words in re.findall(r"--set (\S+)", line)
    }
    assert len(named) >= 10
    for path in named - {"operator.Dockerfile", "gateway.Dockerfile"}:
        part: JSON = schema
        for key in path.split("."):
            part = schema["definitions"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
            if isinstance(part.get("additionalProperties"), dict):
                break  # any key, such as that of a resource
            assert key in part["properties"], path
            part = part["properties"][key]


def test_yaml_of_values_is_taken_by_the_chart_and_that_of_pairs_by_the_manifest(chart: Chart) -> None:
    [pair] = [item for item in yaml.safe_load_all(EMBEDDED.read_text()) if item["kind"] == "ModelPair"]
    parts = 0
    for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL):
        values = yaml.safe_load(block)
        if "serving" in values:
            parts += 1
            assert parse_resource({**pair, "spec": {**pair["spec"], **values}}, lenient=False).problems == ()
        else:
            chart.validate_schema(values)
    assert parts


def test_conditions_and_reasons_are_those_of_the_operator() -> None:
    groups = re.findall(r"^\*\*`(\w+)=\w+`\*\*\n\n((?:[- ] .*\n)+)", GUIDE, re.MULTILINE)
    known = {str(reason) for kind in (Reason, PodReason) for reason in kind} | set(REASONS.values())
    explained = 0
    for condition, items in groups:
        assert condition in set(ConditionType)
        for reasons in re.findall(r"^- ((?:`\w+`(?:,\s+)?)+):", items, re.MULTILINE):
            explained += 1
            assert set(re.findall(r"`(\w+)`", reasons)) <= known
    assert explained >= 20


def test_every_reason_that_is_trouble_is_explained() -> None:
    fine = {
        *("MinimumReplicasReady", "External", "Resolved", "SameTokenizer", "NoDraftModel", "NotChecked", "RollingOut"),
        *("Complete", "NotKilled", "InForce", "Conclusive", "NotRolledBack", "AllServers", "LimitsKept"),
        *("Current", "NotStalled", "NotHeld"),
        "RolledBack",  # of a rollback without a reason of its own, by another version
    }
    known = {str(reason) for kind in (Reason, PodReason) for reason in kind} | set(REASONS.values())
    assert {reason for reason in known - fine if f"`{reason}`" not in GUIDE} == set()


@pytest.fixture
def pair(kube: KubeApiServer, crds: object, namespace: str) -> str:
    """The path of the pair of the walk-through."""
    kube.kubectl("apply", "--filename", str(EMBEDDED), namespace=namespace)
    return f"{PAIRS.format(namespace)}/embedded"


def run(kube: KubeApiServer, namespace: str, words: list[str]) -> str:
    return kube.kubectl(*[namespace if word == "demo" else word for word in words], namespace=namespace)


def test_patches_of_the_guide_kill_and_unkill(kube: KubeApiServer, namespace: str, pair: str) -> None:
    kill, unkill = commands("kubectl", "patch")
    run(kube, namespace, ["patch", *kill])
    assert kube.client().get(pair)["spec"]["killSwitch"] is True
    run(kube, namespace, ["patch", *unkill])
    assert "killSwitch" not in kube.client().get(pair)["spec"]


@pytest.mark.parametrize("how", [(), ("--server-side",), ("--server-side", "--force-conflicts")], ids=str)
def test_kill_survives_that_the_manifest_is_applied_again(
    kube: KubeApiServer, namespace: str, crds: object, how: tuple[str, ...]
) -> None:
    apply = ("apply", *how, "--filename=-")
    manifest = EMBEDDED.read_text()
    kube.kubectl(*apply, input=manifest, namespace=namespace)
    [kill, _] = commands("kubectl", "patch")
    run(kube, namespace, ["patch", *kill])
    kube.kubectl(*apply, input=manifest.replace("maxDraftTokens: 6", "maxDraftTokens: 4"), namespace=namespace)
    spec = kube.client().get(f"{PAIRS.format(namespace)}/embedded")["spec"]
    assert (spec["killSwitch"], spec["maxDraftTokens"]) == (True, 4)


def test_looking_commands_are_taken_by_kubectl(kube: KubeApiServer, namespace: str, pair: str) -> None:
    for verb in ("get", "describe"):
        for words in commands("kubectl", verb):
            run(kube, namespace, [verb, *(word for word in words if word != "--watch")])
    assert "embedded" in kube.kubectl("get", "slipstream", namespace=namespace)
    assert kube.kubectl("explain", "sp.spec.rollback.failMode")


def test_pairs_and_policies_are_deleted_as_the_guide_says(kube: KubeApiServer, namespace: str, pair: str) -> None:
    [words] = [words for words in commands("kubectl", "delete") if "modelpairs,speculationpolicies" in words]
    run(kube, namespace, ["delete", *words])
    assert not kube.client().exists(pair)
