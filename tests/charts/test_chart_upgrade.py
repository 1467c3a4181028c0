"""Each value of the chart before, changed alone, has its effect in this chart, or is refused with the name of the new
one."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

import jsonschema
import pytest
import yaml
from helm_python.chart import Chart
from helm_python.errors import HelmError

from tests.charts.conftest import EVERYTHING, JSON, Render, before_1_22, with_access
from tests.charts.test_chart_cluster import PRIORITY, TOO_NEW
from tests.charts.test_chart_scalars import changed, merged, written
from tests.support.earlier_release import RELEASE as BEFORE
from tests.support.earlier_release import extract
from tests.support.kube import KubeApiServer

# For each form that a value may have: the first that fits is another value than the default.
CANDIDATES: tuple[object, ...] = (
    *(False, True, "zzz", "sha256:" + "ab" * 32, "info", "debug", "NodePort", "DoNotSchedule", "Always"),
    *("77Mi", "777mb", "77s", "http://zzz.example/", "redis://zzz:6379"),
    *(["zzz"], [{"name": "zzz"}], [7777], ["10.9.8.0/24"], {"zzz": "zzz"}, {"requests": {"cpu": "7"}}),
    *([{"prefix": "zzz/", "namespaces": ["zzz"]}], {"ZZZ": {"namespaces": ["zzz"], "hosts": ["zzz.example"]}}),
)
KEYS: JSON = {"gateway": {"auth": {"existingSecret": {"name": "keys"}}}}
LEASE: JSON = {"operator": {"leaderElection": {"enabled": True}}}
OTHER_REDIS: JSON = {"redis": {"url": "redis://cache:6379"}}
# Values that have an effect together with these only.
TOGETHER: dict[str, JSON] = {
    "gateway.ingress.enabled": {"gateway": {"ingress": {"hosts": ["llm.example.com"]}}},
    "gateway.httpRoute.enabled": {"gateway": {"httpRoute": {"parentRefs": [{"name": "public"}]}}},
    "gateway.admin.mayKill": KEYS,
    "gateway.serviceAccount.create": {"gateway": {"serviceAccount": {"name": "mine"}}},
    "operator.serviceAccount.create": {"operator": {"serviceAccount": {"name": "mine"}}},
    "operator.replicas": LEASE,
    "redis.existingSecret.key": {"redis": {"existingSecret": {"name": "cache"}}},
    "networkPolicy.redis.ports": OTHER_REDIS,
    "networkPolicy.redis.cidrs": OTHER_REDIS,
}
# Generated ones would be new each time.
SECRETS: JSON = {"redis": {"password": "given"}, "gateway": {"assignmentSecret": {"value": "given".zfill(16)}}}
BASES: tuple[JSON, ...] = tuple(merged(with_access(base), SECRETS) for base in ({}, merged(EVERYTHING, LEASE)))
# Values that no longer have one; the notes name them.
WITHOUT_EFFECT = {"gateway.assignmentSecret.value", "operator.leaderElection.enabled"}
# Values that cannot be changed alone in the version before, and `global`, which never has an effect.
NEVER = {
    "global",
    "gateway.auth.allowAnonymous",
    "gateway.assignmentSecret.existingSecret.name",
    "gateway.assignmentSecret.existingSecret.key",
}


def leaves(schema: JSON, part: JSON, values: object, path: str = "") -> Iterator[tuple[str, JSON, object]]:
    """Each value's path, its schema and its default."""
    part = schema["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    if "properties" not in part or path.endswith(".resources"):
        yield path, part, values
        return
    for name, inner in part["properties"].items():
        default = values.get(name) if isinstance(values, dict) else None
        yield from leaves(schema, inner, default, f"{path}.{name}".lstrip("."))


def another(schema: JSON, part: JSON, default: object) -> object:
    """A valid value that is not the default."""
    numbers = (default + 1,) if type(default) is int else ()
    check = jsonschema.Draft7Validator({**part, "definitions": schema["definitions"]})
    return next(value for value in (*numbers, *CANDIDATES) if value != default and check.is_valid(value))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chart]:
    tree = extract(tmp_path_factory.mktemp("earlier") / "tree")
    if tree is None:
        pytest.skip(f"this checkout has no commit of {BEFORE}: it is a shallow one")
    with Chart.load(tree / "charts" / "slipstream") as loaded:
        yield loaded


@functools.cache
def written_once(chart: Chart, values: str) -> str | None:
    return written(chart, json.loads(values))


def effect(before: Chart, chart: Chart, path: str, value: object) -> str:
    """The effect in this chart of a value that has one in the chart before."""
    for base in BASES:
        given = merged(base, TOGETHER.get(path, {}))
        wanted = changed(given, tuple(path.split(".")), value)
        if written(before, wanted) in (None, written_once(before, json.dumps(given))):
            continue
        new = written(chart, wanted)
        return "refused" if new is None else "no effect" if new == written_once(chart, json.dumps(given)) else "effect"
    return "no effect before"


def test_every_value_has_its_effect(before: Chart, chart: Chart) -> None:
    assert before.schema is not None
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, part, default in leaves(before.schema, before.schema, before.values):
        found[effect(before, chart, path, another(before.schema, part, default))].add(path)
    assert len(found.pop("effect")) > 130
    assert found == {"refused": {"gateway.workers"}, "no effect": WITHOUT_EFFECT, "no effect before": NEVER}


def test_a_value_that_cannot_have_its_effect_names_the_new_one(render: Render) -> None:
    message = "gateway.workers: a pod is one gateway since 0.3; remove the value, and multiply gateway.replicas"
    with pytest.raises(HelmError, match=re.escape(message)):
        render({"gateway": {"workers": 2}})


def test_all_defaults_of_the_version_before_are_accepted(before: Chart, chart: Chart) -> None:
    """`helm upgrade --reuse-values` gives them to this chart."""
    assert written(chart, merged(before.values, BASES[0])) is not None


@pytest.mark.parametrize(
    "values", [LEASE, {"gateway": {"workers": 1}}, {"gateway": {"assignmentSecret": {"value": "x"}}}, {}]
)
def test_notes_name_values_without_effect(notes: Callable[..., str], values: JSON) -> None:
    assert ("operator.leaderElection have no effect since 0.3" in notes(values)) == bool(values)


def without_hook(item: JSON) -> JSON:
    """`item` as the test server can read it: hooks that sleep came with Kubernetes 1.29."""
    for container in item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
        container.pop("lifecycle", None)
    return item


@pytest.mark.parametrize("values", BASES, ids=["defaults", "everything"])
def test_a_server_changes_the_objects_of_the_version_before(
    before: Chart, chart: Chart, kube: KubeApiServer, namespace: str, values: JSON
) -> None:
    """Some fields of an object cannot be changed, such as the selector of a Deployment."""
    kube.client().apply_yaml([PRIORITY])
    for each in (before, chart, before):
        items = list(yaml.safe_load_all(written(each, values, namespace=namespace) or ""))
        known = [without_hook(before_1_22(item)) for item in items if item and item["apiVersion"] not in TOO_NEW]
        assert len(kube.client().apply_yaml(known)) >= 15
