"""The mixed workload is repeatable, unseen in training, and each of its references passes its own check."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from slipstream_engine.embedded.corpus import TASKS, examples
from slipstream_engine.embedded.mixed import mixed


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(mixed(1000, 4))


def test_rows_follow_from_the_seed_and_a_shorter_run_is_a_prefix(rows: list[dict[str, Any]]) -> None:
    assert list(mixed(50, 4)) == rows[:50]
    assert list(mixed(50, 5)) != rows[:50]


def test_no_request_was_seen_in_training(rows: list[dict[str, Any]]) -> None:
    materials = {one.material for one in itertools.islice(examples(4), 2000) if one.task not in ("sql", "python")}
    prompts = [row["request"]["messages"][-1]["content"] for row in rows if row["class"] not in ("sql", "python")]
    assert not [prompt for prompt in prompts if any(prompt.endswith(material) for material in materials if material)]


def test_every_task_occurs_and_most_requests_come_from_programs_that_repeat_their_prompt(
    rows: list[dict[str, Any]],
) -> None:
    assert set(Counter(row["class"] for row in rows)) == set(TASKS)
    openings = Counter(row["request"]["messages"][0]["content"][:40] for row in rows)
    assert sum(count for _, count in openings.most_common(16)) >= 0.7 * len(rows)


def test_length_cannot_be_read_from_max_tokens(rows: list[dict[str, Any]]) -> None:
    asked = {row["class"]: row["request"]["max_tokens"] for row in rows}
    assert asked["extraction"] == asked["notes"] == asked["summary"] == 512
    assert all(len(row["reference"]) < 4 * row["request"]["max_tokens"] for row in rows)


def test_sampled_requests_carry_a_seed_and_are_the_smaller_part(rows: list[dict[str, Any]]) -> None:
    assert all(("seed" in row["request"]) == (row["request"]["temperature"] > 0) for row in rows)
    share = sum(row["request"]["temperature"] > 0 for row in rows) / len(rows)
    assert 0.1 < share < 0.4
    assert {row["request"]["temperature"] for row in rows} == {0.0, 0.7, 1.0}


def test_every_reference_passes_its_own_check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        check, reference = row["check"], row["reference"]
        assert all(part in reference for part in check.get("contains", []))
        assert check.get("label", reference) == reference
        if "fields" in check:
            record = json.loads(reference)
            assert {name: record[name] for name in check["fields"]} == check["fields"]
            assert set(check["json-schema"]["required"]) <= set(record)


def test_no_slot_is_left_unfilled(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        text = "\n".join(message["content"] for message in row["request"]["messages"])
        assert not any(slot in text for slot in ("{order}", "{labels}", "{what}"))


@pytest.mark.parametrize("bursts", [False, True])
def test_arrivals_keep_the_rate(bursts: bool) -> None:
    arrivals = [row["at_s"] for row in mixed(4000, 7, rate=4.0, bursts=bursts)]
    assert arrivals == sorted(arrivals)
    assert len(arrivals) / arrivals[-1] == pytest.approx(4.0, rel=0.25)


def test_bursts_spread_arrivals_more_than_a_poisson_process() -> None:
    def dispersion(bursts: bool) -> float:
        counts = Counter(int(row["at_s"] // 10) for row in mixed(3000, 3, rate=2.0, bursts=bursts))
        per_window = [counts[window] for window in range(max(counts))]
        mean = sum(per_window) / len(per_window)
        return sum((count - mean) ** 2 for count in per_window) / len(per_window) / mean

    assert dispersion(False) == pytest.approx(1.0, abs=0.4)
    assert dispersion(True) > 3.0


def test_the_command_writes_json_lines_without_loading_torch() -> None:
    code = (
        "import runpy, sys; sys.argv = ['mixed', '--requests', '3', '--seed', '9', '--bursts']; "
        "runpy.run_module('slipstream_engine.embedded.mixed', run_name='__main__'); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(mixed(3, 9, bursts=True))


def test_the_command_refuses_an_empty_workload() -> None:
    command = [sys.executable, "-m", "slipstream_engine.embedded.mixed", "--requests", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--requests: must be above 0, got 0" in done.stderr
