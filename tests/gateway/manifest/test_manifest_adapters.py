"""LoRA adapters of a pair: their names, what a manifest may not say of them, and their routes."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import ModelPair, Route, compile_table, parse_resource
from slipstream_core.manifest.resolve import resolve
from slipstream_core.manifest.table import CanaryRoute
from slipstream_core.manifest.vllm_command import adapter_arguments
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot, with_adapter
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


REFUSED: list[tuple[JSON, str]] = [
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
        pair({**STARTED, "arguments": ["--enable-lora"]}, {"name": "sql", "source": SOURCE}),
        "spec.engine.arguments[0]: is set by spec.engine.adapters, got '--enable-lora'",
    ),
    (
        pair({**STARTED, "arguments": ["--lora-modules=sql=/sql"]}, {"name": "sql", "source": SOURCE}),
        "spec.engine.arguments[0]: is set by spec.engine.adapters, got '--lora-modules=sql=/sql'",
    ),
]


@pytest.mark.parametrize(("document", "expected"), REFUSED)
def test_an_adapter_that_nobody_could_serve_is_refused(document: JSON, expected: str) -> None:
    assert problems(document) == [f"ModelPair/acme: {expected}"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "-a", "a/b"])
def test_a_name_that_clients_could_not_write_is_refused(name: str) -> None:
    [problem] = problems(pair(RUNNING, {"name": name}))
    assert problem.startswith("ModelPair/acme: spec.engine.adapters[0].name: ")


OTHER = changed(PAIR, {"model": "acme:sql", "engine": {"kind": "vllm", "endpoints": ["http://b:1"]}}, name="other")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_model_with_the_name_of_another_pairs_adapter_is_refused(is_first: bool) -> None:
    documents = [pair(RUNNING, {"name": "sql"}), OTHER][:: 1 if is_first else -1]
    expected = "ModelPair/other: spec.model: ModelPair/acme serves the model 'acme:sql' as its adapter"
    assert problems(*documents) == [expected]


@pytest.mark.parametrize("is_older", [True, False])
def test_in_a_cluster_the_pair_of_the_model_has_the_names_of_its_adapters(is_older: bool) -> None:
    """Whatever their age: a pair of another namespace must not get an adapter's prompts by its name as a model."""
    ages = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")[:: 1 if is_older else -1]
    documents = [
        changed(document, namespace=namespace, creationTimestamp=age)
        for document, namespace, age in zip(
            (pair(RUNNING, {"name": "sql"}), OTHER), ("team-a", "team-b"), ages, strict=True
        )
    ]
    found = resolve([parse_resource(document) for document in documents])
    assert list(found.owners) == ["acme"]
    [(key, (problem,))] = found.problems.items()
    assert "other" in key
    assert str(problem) == "spec.model: ModelPair team-a/acme serves the model 'acme:sql' as its adapter"
    table = compile_table([item for item in (parse_resource(each).item for each in documents) if item is not None])
    served = {name: route.pair.metadata.name for name in table.models() if (route := table.find(name)) is not None}
    assert served == {"acme": "acme", "acme:sql": "acme"}  # gateways see one model at a time, and agree


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


def test_a_new_revision_gets_requests_for_adapters_that_it_has() -> None:
    pool = Pool((), clock=lambda: 0.0)
    serving = route(pair(STARTED, {"name": "sql", "source": SOURCE}, {"name": "de", "source": "./de"}))
    new = route(pair(STARTED, {"name": "sql", "source": "./sql-v2"}))
    canary = CanaryRoute(route=new, revision="r" * 16, share=0.1)
    served = ServedRoute(
        msgspec.structs.replace(serving, canary=canary),
        pool,
        pool,
        frozenset(),
        canary=ServedRoute(new, pool, pool, frozenset()),
    )
    sql, de = with_adapter(served, "sql"), with_adapter(served, "de")
    assert sql is not None
    assert sql.canary is not None
    assert sql.route.canary is not None
    assert sql.canary.route == sql.route.canary.route
    assert (sql.canary.adapter, sql.route.canary.share) == ("acme:sql", 0.1)
    assert de is not None
    assert (de.canary, de.route.canary) == (None, None)


def test_a_snapshot_finds_pairs_and_their_adapters() -> None:
    with_tag = changed(pair(RUNNING, {"name": "sql"}), {"model": "acme:8b"}, name="tagged")
    found = snapshot(pair(RUNNING, {"name": "sql"}), with_tag)
    assert list(found.by_name) == found.table.models() == ["acme", "acme:sql", "acme:8b", "acme:8b:sql"]
    for name, served in found.by_name.items():
        assert served.route.model == name
        assert served.route == found.table.find(name)
        assert served.adapter == ("sql" if name.endswith(":sql") else None)
    for name in ("", ":", "sql", ":sql", "acme:", "acme:other", "acme:sql:sql", "acme:SQL"):
        assert found.table.find(name) is None


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


@pytest.mark.parametrize(
    ("document", "is_scored"),
    [
        (pair(RUNNING), True),
        (pair(RUNNING, {"name": "sql"}), False),
        (pair({**STARTED, "arguments": ["--enable-lora"]}), False),
        (pair({**RUNNING, "plain": {"endpoints": ["http://b:1"]}}, {"name": "sql"}), False),
    ],
)
def test_servers_with_lora_are_never_requested_to_score_a_prompt(document: JSON, is_scored: bool) -> None:
    found = route(document)
    backends = [found.plain, found.speculative, found.fallback]
    assert found.plain.scores_prompts is is_scored
    for backend in filter(None, backends):
        assert bool(backend.capabilities.missing({"prompt_logprobs"})) is not is_scored
