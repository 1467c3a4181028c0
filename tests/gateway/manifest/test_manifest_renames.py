"""A rename waits while the status keeps another name, and no annotation accepts it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slipstream_core.manifest.versions import Rename, parse_version, pending_rename

from tests.gateway.manifest.objects import JSON, pair_spec, resource

ALLOW = "slipstream.dev/allow-rename"


def pair(model: str, *, kept: JSON | None = None, annotations: JSON | None = None, **more: Any) -> JSON:
    """The second generation of a pair whose status keeps the first, with the spec `kept`."""
    metadata = {"name": "acme", "namespace": "team", "generation": 2, "annotations": annotations}
    status = {"lastGood": {"generation": 1, "spec": json.dumps(kept)}} if kept is not None else {}
    return resource("ModelPair", pair_spec(model, **more), **metadata) | {"status": status}


def test_name_that_the_status_keeps_counts_until_the_operator_says_otherwise() -> None:
    raw = pair("new", kept=pair_spec("old"))
    assert pending_rename(raw) == Rename("old", "new")
    parsed = parse_version(raw)
    assert parsed.item is None
    [problem] = parsed.problems
    assert (problem.path, parsed.model) == ("spec.model", "new")
    assert f"{ALLOW}: 'new'" in problem.message
    raw["status"]["lastGood"]["generation"] = 2
    assert pending_rename(raw) is None
    assert parse_version(raw).item is not None


@pytest.mark.parametrize(
    "raw",
    [
        pair("new"),
        pair("old", kept=pair_spec("old"), maxDraftTokens=2),
        pair("new", kept=pair_spec("old"), annotations={ALLOW: "new"}),
        pair("new", kept={"model": 5}),
        pair("new", kept=pair_spec("old", engine={"kind": "gone"})),
    ],
    ids=["nothing kept", "same name", "allowed", "unreadable name", "unusable version"],
)
def test_name_of_the_newest_spec_counts(raw: JSON) -> None:
    assert parse_version(raw).item is not None


def test_annotation_for_another_name_allows_nothing() -> None:
    assert parse_version(pair("new", kept=pair_spec("old"), annotations={ALLOW: "newer"})).item is None


def test_spec_that_is_invalid_besides_keeps_its_own_problem() -> None:
    [problem] = parse_version(pair("new", kept=pair_spec("old"), maxDraftTokens=-1)).problems
    assert problem.path == "spec.maxDraftTokens"
