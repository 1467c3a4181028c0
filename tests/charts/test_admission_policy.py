"""The optional admission policy: what its expressions refuse, evaluated without a cluster."""

from __future__ import annotations

from typing import Any

import cel
import pytest

from tests.charts.conftest import JSON, Only, Render

KIND = "ValidatingAdmissionPolicy"
CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"
RENAME, DELETE = "slipstream.dev/allow-rename", "slipstream.dev/allow-delete"
HELD = {"type": "Accepted", "status": "False", "reason": "ModelNameInUse"}
FINE = {"type": "Accepted", "status": "True", "reason": "Accepted"}


def pair(model: str = "acme", *, status: JSON | None = None) -> JSON:
    found: JSON = {"metadata": {"name": "pair", "namespace": "team"}, "spec": {"model": model}}
    return found if status is None else {**found, "status": status}


def annotated(item: JSON, name: str, value: str) -> JSON:
    annotations = {**item["metadata"].get("annotations", {}), name: value}
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}


@pytest.fixture(scope="module")
def policy(render: Render, only: Only) -> JSON:
    found: JSON = only(render({"admissionPolicy": {"enabled": True}}), KIND)["spec"]
    return found


def evaluated(expression: str, values: JSON) -> Any:
    return cel.compile(expression).execute(values)


def refusals(policy: JSON, operation: str, old: JSON, new: JSON | None, *, user: str = "anna") -> list[str]:
    """The messages by which an API server refuses the request; it evaluates what is asked in this order."""
    request = {"operation": operation, "userInfo": {"username": user}}
    values: JSON = {"request": request, "oldObject": old, "object": new}
    if not all(evaluated(condition["expression"], values) is True for condition in policy["matchConditions"]):
        return []
    values["variables"] = {one["name"]: evaluated(one["expression"], values) for one in policy["variables"]}
    broken = [rule for rule in policy["validations"] if evaluated(rule["expression"], values) is not True]
    return [evaluated(rule["messageExpression"], values) for rule in broken]


IN_USE = pair(status={"inUse": True, "conditions": [FINE]})


@pytest.mark.parametrize(
    "old",
    [
        pair(),
        pair(status={}),
        pair(status={"inUse": False}),
        annotated(IN_USE, DELETE, "true"),
        annotated(annotated(IN_USE, RENAME, "x"), DELETE, "true"),
    ],
    ids=["no status", "empty status", "not in use", "allowed", "allowed beside others"],
)
def test_pair_may_be_deleted(policy: JSON, old: JSON) -> None:
    assert refusals(policy, "DELETE", old, None) == []


@pytest.mark.parametrize("old", [IN_USE, annotated(IN_USE, DELETE, "false"), annotated(IN_USE, RENAME, "true")])
def test_pair_in_use_is_not_deleted(policy: JSON, old: JSON) -> None:
    [message] = refusals(policy, "DELETE", old, None)
    assert message.startswith("clients requested the model 'acme'")
    assert 'slipstream.dev/allow-delete to "true"' in message
    assert refusals(policy, "DELETE", old, None, user=CONTROLLER) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (IN_USE, {**IN_USE, "spec": {"model": "acme", "killSwitch": True}}),
        (IN_USE, annotated(pair("new"), RENAME, "new")),
        (pair(status={"inUse": False}), pair("new")),
        (pair(), pair("new")),
        (pair("waiting", status={"inUse": True, "conditions": [FINE, HELD]}), pair("acme")),
    ],
    ids=["kill", "allowed", "not in use", "no status", "back from a name that waits"],
)
def test_pair_may_be_changed(policy: JSON, old: JSON, new: JSON) -> None:
    assert refusals(policy, "UPDATE", old, new) == []


@pytest.mark.parametrize(
    "new", [pair("new"), annotated(pair("new"), RENAME, "newer"), annotated(pair("new"), DELETE, "true")]
)
def test_model_in_use_is_not_renamed(policy: JSON, new: JSON) -> None:
    [message] = refusals(policy, "UPDATE", IN_USE, new)
    assert "clients requested the model 'acme'" in message
    assert "slipstream.dev/allow-rename to 'new'" in message


def test_policy_never_stands_in_the_way_of_a_status_or_of_a_kill_that_cannot_be_judged(policy: JSON) -> None:
    assert policy["failurePolicy"] == "Ignore"
    [rule] = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["modelpairs"], ["UPDATE", "DELETE"])


def test_policy_is_made_on_demand_and_for_the_namespaces_that_are_watched(render: Render, only: Only) -> None:
    assert not [item for item in render() if item["kind"].startswith(KIND)]
    on = {"admissionPolicy": {"enabled": True}}
    everywhere = render({**on, "watchNamespaces": ["*"]})
    inside = render({**on, "watchNamespaces": ["team-a", "team-b"]})
    assert "matchResources" not in only(everywhere, f"{KIND}Binding")["spec"]
    binding = only(inside, f"{KIND}Binding")
    assert binding["spec"]["policyName"] == only(inside, KIND)["metadata"]["name"]
    [wanted] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert wanted == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
