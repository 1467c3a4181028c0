"""Whether live objects have what is wanted, and the smallest patch that makes one status of another."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_operator.cluster.comparison import has, merge_patch, without_blanks

LIVE: dict[str, Any] = {
    "metadata": {"name": "x", "labels": {"ours": "1", "theirs": "2"}, "uid": "u"},
    "spec": {
        "replicas": 3,
        "template": {
            "spec": {
                "containers": [
                    {"name": "sidecar", "image": "proxy"},
                    {"name": "server", "image": "triton", "env": [{"name": "A", "value": "1"}], "tty": False},
                ],
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
            }
        },
        "ports": [{"name": "grpc", "port": 8001, "protocol": "TCP", "targetPort": "grpc"}],
    },
}


def wanted(**server: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "server", **server}]}}}}


@pytest.mark.parametrize(
    "desired",
    [
        {"metadata": {"labels": {"ours": "1"}}},
        wanted(image="triton", env=[{"name": "A", "value": "1"}]),
        {"spec": {"ports": [{"port": 8001, "name": "grpc"}]}},
        {"spec": {"template": {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "volumes": []}}}},
        {"spec": {"strategy": {}}},
    ],
)
def test_what_others_added_does_not_count(desired: dict[str, Any]) -> None:
    assert has(LIVE, desired)


@pytest.mark.parametrize(
    "desired",
    [
        {"metadata": {"labels": {"ours": "2"}}},
        {"metadata": {"labels": {"new": "1"}}},
        {"spec": {"replicas": 2}},
        wanted(image="other"),
        wanted(env=[{"name": "B", "value": "1"}]),
        wanted(tty=0),
        {"spec": {"template": {"spec": {"containers": [{"name": "another"}]}}}},
        {"spec": {"template": {"spec": {"tolerations": []}}}},
        {"spec": {"ports": [{"port": 8001, "protocol": "UDP"}]}},
        {"spec": {"publishNotReadyAddresses": False}},
    ],
)
def test_any_field_that_we_want_and_is_otherwise_counts(desired: dict[str, Any]) -> None:
    assert not has(LIVE, desired)


@pytest.mark.parametrize(
    ("live", "desired", "same"),
    [
        ("1", "1000m", True),
        ("1Gi", "1024Mi", True),
        ("1500m", "1.5", True),
        ("2k", "2000", True),
        ("1", "1Ki", False),
        ("1G", "1Gi", False),
        ("v1", "v1.0", False),
        ("1", "one", False),
    ],
)
def test_quantities_are_the_same_in_any_writing(live: str, desired: str, same: bool) -> None:
    assert has({"cpu": live}, {"cpu": desired}) is same


JSON = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
STATUS = st.dictionaries(st.sampled_from("xyz"), JSON, max_size=3)


def merged(live: Any, patch: Any) -> Any:
    """RFC 7396, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@given(STATUS, STATUS)
def test_patch_makes_exactly_the_wanted_status_of_any_other(live: dict[str, Any], desired: dict[str, Any]) -> None:
    before = copy.deepcopy((live, desired))
    patch = merge_patch(live, desired)
    assert merged(live, patch) == desired
    assert (patch == {}) == (live == desired)
    assert (live, desired) == before


def test_blank_fields_are_left_out_and_falsehoods_are_not() -> None:
    status = {"a": None, "b": "", "c": 0, "d": False, "e": [{"f": None, "g": ""}], "h": {}}
    assert without_blanks(status) == {"c": 0, "d": False, "e": [{}], "h": {}}
