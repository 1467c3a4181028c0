"""`--suite`: what it sets, what a user's options change, and what it refuses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest.engines import SlipstreamEngine
from slipstream_tools.bench.arguments import add_arguments
from slipstream_tools.bench.manifests import read_manifest
from slipstream_tools.bench.options import BenchOptions, parse_options
from slipstream_tools.bench.suites import fetched


def options(*words: str) -> BenchOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_options(parser.parse_args(words))


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "question.jsonl"
    path.write_text('{"question_id": 1, "category": "qa", "turns": ["Why?"]}')
    return str(path)


def test_a_suite_sets_what_was_not_given(questions: str) -> None:
    found = options("--suite", "spec-bench", "--requests", questions)
    assert [mode.name for mode in found.modes] == ["plain", "speculative:1", "speculative:3", "speculative:5", "routed"]
    assert found.concurrency == (1, 4, 8, 16)
    assert found.manifest.name == "smollm2.yaml"


def test_given_options_go_before_the_suites(questions: str) -> None:
    words = ("--requests", questions, "--engine", "vllm", "--modes", "plain,routed", "--concurrency", "2")
    found = options("--suite", "spec-bench", *words)
    assert [mode.name for mode in found.modes] == ["plain", "routed"]
    assert (found.concurrency, found.manifest.name) == ((2,), "smollm2-vllm.yaml")


def test_the_mixed_suite_needs_no_file() -> None:
    found = options("--suite", "mixed")
    assert (found.requests, found.manifest.name) == ("embedded:200", "embedded.yaml")


def test_open_loops_replace_the_suites_loads_and_get_places(questions: str) -> None:
    found = options("--suite", "mixed", "--arrivals", "1.5,3x8")
    assert found.loads == ("1.5/s", "3x8/s")


def test_a_suite_measures_a_gateway_as_well(questions: str) -> None:
    found = options("--suite", "spec-bench", "--requests", questions, "--url", "http://gateway:8080")
    assert (found.url, found.concurrency) == ("http://gateway:8080", (1, 4, 8, 16))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--requests is required without --suite"),
        (("--suite", "spec-bench"), "--suite spec-bench needs --requests FILE"),
        (("--requests", "embedded:5", "--engine", "vllm"), "--engine needs --suite"),
        (("--suite", "mixed", "--url", "http://g", "--engine", "vllm"), "--engine configures the servers"),
        (("--requests", "embedded:5", "--dtype", "bfloat16"), "--dtype needs --suite"),
        (("--suite", "mixed", "--engine", "vllm", "--dtype", "bfloat16"), "--dtype is for the embedded engine"),
        (("--suite", "mixed", "--url", "http://g", "--dtype", "bfloat16"), "--dtype configures the servers"),
        (("--suite", "mixed", "--url", "http://g", "--drafts", "ngram"), "--drafts configures the servers"),
    ],
)
def test_what_does_not_fit_together_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        options(*words)


def test_every_request_in_flight_has_a_place() -> None:
    manifest = read_manifest(options("--suite", "mixed").manifest, None)
    engine = fetched(manifest, 16).pair.spec.engine
    assert isinstance(engine, SlipstreamEngine)
    assert engine.max_concurrency == 16


def test_the_number_format_of_a_suite_can_be_chosen() -> None:
    found = options("--suite", "mixed", "--dtype", "bfloat16")
    engine = fetched(read_manifest(found.manifest, None), 1, found.dtype).pair.spec.engine
    assert isinstance(engine, SlipstreamEngine)
    assert engine.dtype == "bfloat16"
