"""Values: each is explained, each is checked, and what is unknown or contradictory is refused with its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from helm_python.chart import Chart
from helm_python.errors import HelmError

from tests.charts.conftest import JSON, Render

CHART = Path(__file__).parents[2] / "charts" / "slipstream"
VALUES = (CHART / "values.yaml").read_text()
# Values whose content is Kubernetes' business, and so has no fixed keys.
FREE = {"global"}


def keys_of(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}{key}"
            yield from keys_of(inner, f"{path}{key}.")


def resolved(schema: JSON, part: JSON) -> JSON:
    found = schema["definitions"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
    assert isinstance(found, dict)
    return found


def properties_of(schema: JSON, part: JSON, path: str = "") -> Iterator[str]:
    for key, inner in resolved(schema, part).get("properties", {}).items():
        if resolved(schema, inner).get("deprecated"):
            continue  # of the version before: tests/charts/test_chart_upgrade.py
        yield f"{path}{key}"
        yield from properties_of(schema, inner, f"{path}{key}.")


def objects_of(schema: JSON, part: JSON, path: str = "values") -> Iterator[tuple[str, JSON]]:
    """Every object schema, by where it stands."""
    found = resolved(schema, part)
    if found.get("type") == "object" and not found.get("deprecated"):
        yield path, found
    for key, inner in found.get("properties", {}).items():
        yield from objects_of(schema, inner, f"{path}.{key}")


def test_every_value_has_a_comment_above_it() -> None:
    lines = VALUES.splitlines()
    bare = set()
    for number, line in enumerate(lines):
        leaf = re.match(r" *(\w+): *\S", line)
        if leaf and not lines[number - 1].strip().startswith("#"):
            bare.add(leaf[1])
    assert bare <= {"cpu", "memory", "grafana_dashboard"}  # the group says what they are


def test_schema_and_values_have_the_same_keys(chart: Chart) -> None:
    schema, values = chart.schema, yaml.safe_load(VALUES)
    assert schema is not None
    said = {key for key in properties_of(schema, schema) if not key.endswith("resources.claims")}
    # Of these, the content is free: what stands in values.yaml is a default, not a key.
    free = r"\.(resources\.(requests|limits)|labels|dnsPodLabels)\."
    there = {key for key in keys_of(values) if not re.search(free, key)}
    assert there == said


def test_schema_refuses_unknown_keys_everywhere(chart: Chart) -> None:
    schema = chart.schema
    assert schema is not None
    open_ones = [
        path.removeprefix("values.")
        for path, part in objects_of(schema, schema)
        if part.get("additionalProperties") not in (False,) and "additionalProperties" not in part
    ]
    # A pod's own affinity is checked by the API server.
    assert set(open_ones) == FREE | {"gateway.affinity", "operator.affinity"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"killSwitch": True}, "killSwitch"),
        ({"gateway": {"killSwitch": True}}, "killSwitch"),
        ({"gateway": {"replicaCount": 3}}, "replicaCount"),
        ({"gateway": {"image": {"name": "x"}}}, "name"),
        ({"gateway": {"image": {"digest": "sha256:abc"}}}, "/gateway/image/digest"),
        ({"gateway": {"replicas": "two"}}, "/gateway/replicas"),
        ({"gateway": {"service": {"port": 0}}}, "/gateway/service/port"),
        ({"gateway": {"ingress": {"enabled": True}}}, "/gateway/ingress/hosts"),
        ({"gateway": {"logLevel": "verbose"}}, "/gateway/logLevel"),
        ({"redis": {"url": "cache.example.com:6379"}}, "/redis/url"),
        ({"redis": {"password": 'a"b'}}, "/redis/password"),
        ({"redis": {"storage": {"size": "1"}}}, "/redis/storage/size"),
        ({"redis": {"trial": {"enabled": True}}}, "trial"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
        ({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}}, "/networkPolicy/apiServer/cidrs/0"),
        ({"modelPairs": []}, "modelPairs"),
    ],
)
def test_wrong_value_is_refused_by_name(chart: Chart, values: JSON, named: str) -> None:
    with pytest.raises(HelmError, match=re.escape(named)):
        chart.validate_schema(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"redis": {"url": "redis://one:6379", "existingSecret": {"name": "cache"}}},
            "redis: set url or existingSecret.name, not both",
        ),
        ({"watchNamespaces": ["*", "team-a"]}, 'watchNamespaces: "*" means all namespaces and must be the only entry'),
        (
            {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 3}}},
            "maxReplicas 3 is below minReplicas 5",
        ),
        ({"gateway": {"httpRoute": {"enabled": True}}}, "gateway.httpRoute.parentRefs"),
        ({"gateway": {"serviceAccount": {"create": False}}}, "gateway.serviceAccount.name is required"),
    ],
)
def test_contradiction_is_refused_with_what_to_do(render: Render, values: JSON, message: str) -> None:
    with pytest.raises(HelmError, match=re.escape(message)):
        render(values)


def test_chart_goes_with_global_values_of_a_parent(render: Render) -> None:
    assert render({"global": {"anything": {"at": "all"}}})


def test_no_value_names_a_registry(chart: Chart) -> None:
    values = chart.values
    images = [values["gateway"]["image"], values["operator"]["image"], values["triton"]["image"]]
    images.append(values["redis"]["image"])
    assert not any("/" in image["repository"] or "." in image["repository"] for image in images)


def test_notes_say_how_to_kill_and_unkill(notes: Callable[..., str]) -> None:
    text = notes({})
    for kind in ("modelpair", "speculationpolicy"):
        patch = f'kubectl patch {kind} NAME --namespace NAMESPACE --type merge --patch \'{{"spec":{{"killSwitch":'
        assert f"{patch}true}}}}'" in text
        assert f"{patch}null}}}}'" in text
    for command in ("kill", "unkill"):
        assert f"slipstream {command} modelpair/NAME --namespace NAMESPACE --report-namespace serving" in text
    assert "For production,\nset redis.existingSecret.name to a Secret with the URL of your own." in text
    assert "WARNING: the kinds ModelPair and SpeculationPolicy are not installed" in text  # as in this cluster of none


def test_notes_follow_the_values(notes: Callable[..., str], everything: JSON) -> None:
    everywhere, namespaced = notes(everything), notes({**everything, "watchNamespaces": ["team-a", "team-b"]})
    assert "rollouts stay at their first step" not in everywhere
    without = notes({"redis": {"enabled": False}})
    assert "rollouts stay at their first step" in without
    assert "without a replica" not in without
    assert "--clusterrole slipstream-kill" in everywhere
    assert "--role slipstream-kill" in namespaced
    assert "the namespaces team-a, team-b, and of no other" in namespaced
    assert "the namespaces serving, and of no other" in without
    assert "the pairs of every namespace" in everywhere
    assert "create rolebinding" not in notes({"rbac": {"killRole": {"create": False}}})


def test_dashboard_in_the_chart_is_the_one_in_deploy() -> None:
    ours = CHART.parents[1] / "deploy" / "dashboards" / "slipstream.json"
    assert (CHART / "dashboards" / "slipstream.json").read_bytes() == ours.read_bytes()
