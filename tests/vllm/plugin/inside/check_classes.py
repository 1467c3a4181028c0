"""The file of classes in vLLM's real schedulers, synchronous and asynchronous, with a scripted model runner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from scripted import Engine, configuration, request, scheduler_for
from slipstream_vllm import settings
from slipstream_vllm.class_report import by_class
from slipstream_vllm.errors import UnsupportedServerError

TARGET = os.environ["SLIPSTREAM_TARGET"]


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def config(request: pytest.FixtureRequest) -> Any:
    return configuration(TARGET, asynchronous=request.param)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "classes.yaml"
    file.write_text("classes: {long: {length: 2}, unlabelled: {length: 0}}")
    monkeypatch.setenv(settings.CLASSES_VARIABLE, str(file))
    return file


def most_drafted(engine: Engine, name: str) -> int:
    return max(step.verified.get(f"{name}-0123abcd", 0) for step in engine.steps)


def test_a_request_without_a_length_has_that_of_its_class(config: Any, path: Path) -> None:
    engine = Engine(scheduler_for(config))
    engine.add(
        request("a", None, label="long"),
        request("b", None),
        request("c", None, label="another"),
        request("d", 4, label="long"),
        request("e", 1),
    )
    engine.run()
    assert {name: most_drafted(engine, name) for name in "abcde"} == {"a": 2, "b": 0, "c": 4, "d": 4, "e": 1}


def test_the_counts_of_classes_are_those_of_requests_and_of_vllm(config: Any, path: Path) -> None:
    engine = Engine(scheduler_for(config))
    engine.add(request("a", None, label="long"), request("b", None, label="long", output=17), request("c", 3))
    engine.run()
    found = by_class([engine.scheduler.slipstream_classes()])
    assert {label: (entry["requests"], entry["tokens"]) for label, entry in found.items()} == {
        "long": (2, 57),
        "unlabelled": (1, 40),
    }
    own = [stats.spec_decoding_stats for stats in engine.stats if stats.spec_decoding_stats is not None]
    assert sum(entry["drafted"] for entry in found.values()) == sum(stats.num_draft_tokens for stats in own) > 0
    assert sum(entry["accepted"] for entry in found.values()) == sum(stats.num_accepted_tokens for stats in own) > 0
    assert (found["long"]["length"], found["long"]["origin"]) == (2, "file")
    assert (found["unlabelled"]["length"], found["unlabelled"]["origin"]) == (3, "request")
    assert sum(entry["engine_time_share"] for entry in found.values()) == pytest.approx(1.0)


def test_ranks_are_summed_and_the_shortest_length_is_shown() -> None:
    counts = {"requests": 1, "tokens": 10, "steps": 5, "drafted": 8, "accepted": 4, "engine_s": 1.0}
    found = by_class(
        [{"a": {**counts, "length": 3, "origin": "file"}}, {"a": {**counts, "length": 0, "origin": "threshold"}}]
    )
    assert found == {
        "a": {
            "requests": 2,
            "tokens": 20,
            "drafted": 16,
            "accepted": 8,
            "acceptance": 0.5,
            "tokens_per_step": 2.0,
            "engine_seconds": 2.0,
            "engine_time_share": 1.0,
            "length": 0,
            "origin": "threshold",
        }
    }


def test_a_broken_file_refuses_the_server(path: Path) -> None:
    path.write_text("classes: {long: {length: 5}}")
    with pytest.raises(UnsupportedServerError) as refused:
        configuration(TARGET, asynchronous=False)
    assert str(refused.value).startswith(f"SLIPSTREAM_VLLM_CLASSES={path}: classes.long.length is 5; an integer from 0")
