"""What objects have in common is stored once, and nothing else changes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from slipstream_operator.cluster.sharing import Sharing

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
NODES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


def plain(node: Any) -> Any:
    """`node` with types and order, which == ignores: 1 is True, and fields have no order."""
    if isinstance(node, dict):
        return "fields", [(name, plain(value)) for name, value in node.items()]
    if isinstance(node, list):
        return "items", [plain(item) for item in node]
    return type(node), node


@given(st.lists(NODES, max_size=8))
def test_shared_objects_are_equal_to_the_given_ones(objects: list[Any]) -> None:
    sharing = Sharing()
    assert [plain(sharing.shared(each)) for each in objects] == [plain(each) for each in objects]


def test_equal_parts_are_one_object() -> None:
    sharing = Sharing()
    one, other = (
        sharing.shared({"name": name, "spec": {"ports": [{"port": 8000, "name": "http"}], "empty": {}}})
        for name in ("a", "b")
    )
    assert one["spec"] is other["spec"]
    assert one["name"] != other["name"]


def test_an_empty_list_and_no_fields_are_kept_apart() -> None:
    sharing = Sharing()
    assert sharing.shared([{}, [], {}, []]) == [{}, [], {}, []]


def test_many_different_objects_are_not_remembered_for_ever() -> None:
    sharing = Sharing()
    for index in range(20_000):
        sharing.shared({"uid": str(index)})
    assert len(sharing._parts) <= 4096
