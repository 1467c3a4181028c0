"""LoRA adapters of a pair: their names, what a manifest may not say of them, and their routes."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import pytest
from slipstream_core.manifest import ModelPair, Route, compile_table
from slipstream_core.manifest.vllm_command import adapter_arguments
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.upstreams.pool import Pool

from tests.gateway.manifest.test_manifest_rules import JSON, PAIR, changed, parsed, problems

SOURCE = "./sql"
STARTED: JSON = {"kind": "vllm"}
RUNNING: JSON = {"kind": "vllm", "endpoints": ["http://a:1"]}


def pair(engine: JSON, *adapters: JSON, **spec: Any) -> JSON:
    return changed(PAIR, {"engine": {**engine, "adapters": list(adapters)}, **spec})


def route(document: JSON) -> Route:
    return compile_table(parsed(document)).routes["acme"]


def snapshot(*documents: JSON) -> Snapshot:
    table = compile_table(parsed(*documents))
    pool = Pool((), clock=lambda: 0.0)
    routes = {model: ServedRoute(found, pool, pool, frozenset()) for model, found in table.routes.items()}
    return Snapshot(table, routes, frozenset(), "")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (pair(STARTED, {"name": "sql"}), "spec.engine.adapters[0].source: is required without spec.engine.endpoints"),
        (
            pair(STARTED, {"name": "sql", "source": "hf://acme"}),
            "spec.engine.adapters[0].source: must be hf://ORGANISATION/NAME@REVISION, got 'hf://acme'",
        ),
        (
            pair(STARTED, {"name": "sql", "source": "embedded:draft"}),
            "spec.engine.adapters[0].source: must be the folder of an adapter, got 'embedded:draft'",
        ),
        (
            pair(STARTED, {"name": "sql", "source": SOURCE, "model": "x"}),
            "spec.engine.adapters[0].model: has no effect without spec.engine.endpoints, leave it out",
        ),
        (
            pair(RUNNING, {"name": "sql", "source": SOURCE}),
            "spec.engine.adapters[0].source: has no effect with spec.engine.endpoints, leave it out",
        ),
        (
            pair(RUNNING, {"name": "sql"}, {"name": "sql", "model": "x"}),
            "spec.engine.adapters[1].name: is listed twice: 'sql'",
        ),
        (
            pair({"kind": "vllm", "serving": "triton"}, {"name": "sql", "source": SOURCE}),
            "spec.engine.adapters: has no effect with serving triton, leave it out",
        ),
        (
            pair({**STARTED, "arguments": ["--enable-lora"]}),
            "spec.engine.arguments[0]: is set by spec.engine.adapters, got '--enable-lora'",
        ),
        (
            pair({**STARTED, "arguments": ["--lora-modules=sql=/sql"]}),
            "spec.engine.arguments[0]: is set by spec.engine.adapters, got '--lora-modules=sql=/sql'",
        ),
    ],
)
def test_an_adapter_that_nobody_could_serve_is_refused(document: JSON, expected: str) -> None:
    assert problems(document) == [f"ModelPair/acme: {expected}"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "-a", "a/b"])
def test_a_name_that_clients_could_not_write_is_refused(name: str) -> None:
    [problem] = problems(pair(RUNNING, {"name": name}))
    assert problem.startswith("ModelPair/acme: spec.engine.adapters[0].name: ")


def test_an_adapter_with_the_name_of_another_pairs_model_is_refused() -> None:
    other = changed(PAIR, {"model": "acme:sql", "engine": {"kind": "vllm", "endpoints": ["http://b:1"]}}, name="other")
    [problem] = problems(pair(RUNNING, {"name": "sql"}), other)
    expected = "spec.engine.adapters[0].name: ModelPair/other already serves the model 'acme:sql'"
    assert problem == f"ModelPair/acme: {expected}"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (pair(RUNNING, {"name": "sql"}), "sql"),
        (pair(RUNNING, {"name": "sql", "model": "acme-sql-v2"}), "acme-sql-v2"),
        (pair(STARTED, {"name": "sql", "source": SOURCE}), "acme:sql"),
    ],
)
def test_the_route_of_an_adapter_is_the_pairs_with_another_name(document: JSON, expected: str) -> None:
    base = route(document)
    found = base.for_adapter("sql")
    assert found is not None
    assert found.model == "acme:sql"
    assert found.speculative is not None
    assert (found.plain.model, found.speculative.model) == (expected, expected)
    assert (found.plain.endpoints, found.plain.pool) == (base.plain.endpoints, base.plain.pool)
    assert base.for_adapter("other") is None


def test_a_snapshot_finds_pairs_and_their_adapters() -> None:
    with_tag = changed(pair(RUNNING, {"name": "sql"}), {"model": "acme:8b"}, name="tagged")
    found = snapshot(pair(RUNNING, {"name": "sql"}), with_tag)
    assert found.models() == ["acme", "acme:sql", "acme:8b", "acme:8b:sql"]
    for name in found.models():
        served = found.find(name)
        assert served is not None
        assert served.route.model == name
    assert found.find("acme:8b:sql") is found.find("acme:8b:sql")
    for name in ("", ":", "sql", ":sql", "acme:", "acme:other", "acme:sql:sql", "acme:SQL"):
        assert found.find(name) is None


def test_servers_get_all_adapters_on_their_command_line() -> None:
    sources = {"sql": SOURCE, "de": "hf://acme/de@v1", "c": "pvc://adapters/c", "d": "./d", "e": "./e"}
    document = pair(STARTED, *({"name": name, "source": source} for name, source in sources.items()))
    [item] = parsed(document)
    assert isinstance(item, ModelPair)
    modules, *others = _split(adapter_arguments(item, PurePosixPath("/models")))
    assert modules == [
        {"name": "acme:sql", "path": "/models/sql"},
        {"name": "acme:de", "path": "/models/hf/acme/de/v1"},
        {"name": "acme:c", "path": "/weights/claims/adapters/c"},
        {"name": "acme:d", "path": "/models/d"},
        {"name": "acme:e", "path": "/models/e"},
    ]
    assert others == ["--enable-lora", "--max-loras=4"]


def test_without_adapters_the_command_line_says_nothing_of_them() -> None:
    for document in (PAIR, pair(STARTED)):
        [item] = parsed(document)
        assert isinstance(item, ModelPair)
        assert adapter_arguments(item, PurePosixPath("/models")) == []


def _split(arguments: list[str]) -> list[Any]:
    """The modules as objects, and the arguments after them."""
    assert arguments[0] == "--lora-modules"
    modules = [json.loads(each) for each in arguments[1:] if each.startswith("{")]
    return [modules, *arguments[1 + len(modules) :]]
