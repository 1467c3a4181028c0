"""`slipstream train`: a small file end to end, and files that are broken, one-sided or empty."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_gateway.decide.classify import LinearClassifier, default_model, load_model
from slipstream_gateway.decide.classify.model import TASKS as TASK_NAMES
from slipstream_tools.cli import main
from slipstream_tools.train import fit, phrasings
from slipstream_tools.train.rows import read_rows

TASKS = {
    "classification": "Put this ticket into its drawer: {}",
    "open_chat": "Help me to understand {}",
    "summarization": "Digest of {} please",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few iterations: what is tested is the command, not the model's quality."""
    monkeypatch.setattr(fit, "_TASK_ITERATIONS", 6)
    monkeypatch.setattr(phrasings, "_PER_PHRASING", 1)
    monkeypatch.setattr(phrasings, "_PER_FIXED_PHRASING", 1)


def row(index: int, task: str | None = "open_chat", **fields: Any) -> dict[str, Any]:
    text = TASKS.get(task or "", "Do {}").format(f"thing {index}")
    return {"source": f"desk{index % 2}", "task": task, "messages": [{"role": "user", "content": text}], **fields}


def rows(count: int = 60) -> list[dict[str, Any]]:
    return [
        row(
            index,
            list(TASKS)[index % 3],
            response_tokens_est=(4, 300, 150)[index % 3],
            meta={"rare_answer": index % 2, "resp_rare_frac": 0.3 * (index % 2), "len_kind": "llm_single"},
        )
        | {"source": ("chat-a", "mail-b")[index // 3 % 2]}
        for index in range(count)
    ]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def train(folder: Path, lines: list[Any], *options: str) -> int:
    return main(["train", str(write(folder / "rows.jsonl", lines)), "--out", str(folder / "model.npz"), *options])


def test_a_trained_model_can_be_served_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, rows(), "--report", str(tmp_path / "report.json")) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["held_out"]["sources"]) == {"chat-a", "mail-b"}
    assert set(report["held_out"]["folds"]) == {"part 1", "part 2"}
    assert sum(map(sum, report["held_out"]["confusion"])) == 60
    assert 0 < report["held_out"]["seen_sources"]["rows"] < 30
    assert report["held_out"]["total"]["bins"] is not None
    assert report["held_out"]["total"]["log_error"] > 0 < report["held_out"]["total"]["constant_error"]
    assert "Mean accuracy over sources" in capsys.readouterr().out
    classifier = LinearClassifier(load_model(tmp_path / "model.npz"))
    request = GenerationRequest(
        endpoint=Endpoint.CHAT, model="m", messages=(Message(role="user", content="Digest of thing 7 please"),)
    )
    assert classifier.classify(request).task == "summarization"


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    models = []
    for _ in range(2):
        assert train(tmp_path, rows(30), "--seed", "3") == 0
        models.append(load_model(tmp_path / "model.npz"))
    assert np.array_equal(models[0].table, models[1].table)
    assert np.array_equal(models[0].by_task, models[1].by_task)


def test_broken_rows_are_reported_by_line_skipped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [
        "{\n",
        "[1]\n",
        {"messages": []},
        {"messages": [{"role": "user", "content": 5}]},
        row(1, "cooking"),
        row(1, response_tokens_est=-3),
        row(1, meta={"rare_answer": "yes"}),
        row(1, meta=[1]),
        row(1, meta={"task_alt": 7}),
        row(1, meta={"task_alt": "code"}),
    ]
    assert train(tmp_path, [*rows(30), "\n", *broken]) == 0
    lines = capsys.readouterr().err.splitlines()
    for number, words in (
        (32, "not JSON"),
        (33, "not a JSON object: [1]"),
        (34, "messages is not a list of messages: []"),
        (35, "messages has a content that is not a text: 5"),
        (36, f"task must be one of {', '.join(TASK_NAMES)}, got 'cooking'"),
        (37, "response_tokens_est must be a number of at least 0, got -3"),
        (38, "meta.rare_answer must be 0 or 1, got 'yes'"),
        (39, "meta is not an object: [1]"),
        (40, "meta.task_alt is not a list of tasks: 7"),
        (41, "meta.task_alt is not a list of tasks: 'code'"),
    ):
        assert any(f"line {number}: {words}" in line for line in lines), (number, lines)
    assert any(line.endswith("10 invalid rows skipped, 30 used") for line in lines)


def test_one_task_only_keeps_the_shipped_models_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = [row(index, "open_chat", response_tokens_est=10 + 20 * (index % 12)) for index in range(40)]
    assert train(tmp_path, one) == 0
    out = capsys.readouterr().out
    assert "The task: no training data, so the shipped model's is kept." in out
    assert "Not measured" in out
    written, shipped = load_model(tmp_path / "model.npz"), default_model()
    assert np.allclose(written.bias[:10], shipped.bias[:10])
    assert not np.allclose(written.lengths, shipped.lengths)


def test_no_lengths_at_all_keeps_the_shipped_models_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = [row(index, list(TASKS)[index % 3]) for index in range(40)]
    assert train(tmp_path, bare) == 0
    assert "Whether an answer is long: no training data" in capsys.readouterr().out
    written, shipped = load_model(tmp_path / "model.npz"), default_model()
    assert np.allclose(written.by_task, shipped.by_task)
    assert np.allclose(written.lengths, shipped.lengths)
    assert np.allclose(written.table[:, -3:], shipped.table[:, -3:], atol=0.05)


def test_one_source_is_trained_on_and_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, [{**line, "source": "desk"} for line in rows(30)]) == 0
    assert "Not measured: a measurement requires rows with tasks from at least two sources" in capsys.readouterr().out


def test_an_excluded_source_is_measured_and_not_trained_on(tmp_path: Path) -> None:
    more = [{**line, "source": "third-c"} for line in rows(12)]
    assert train(tmp_path, [*rows(30), *more], "--exclude-source", "third-c", "--report", str(tmp_path / "r.json")) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["rows"] == 30
    assert list(report["held_out"]["excluded"]) == ["third-c"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", (), "no usable row"),
        ("{\n", (), "no usable row; line 1: not JSON"),
        (json.dumps({"messages": [{"role": "user", "content": "hi"}]}), (), "no row has a task, a length or a rare"),
        (json.dumps(row(1)), ("--exclude-source", "x"), "--exclude-source x: the file has no such source"),
        (json.dumps(row(1)), ("--exclude-source", "desk1"), "leaves no row to train on"),
        (json.dumps(row(1)), ("--report", "r.txt"), "the name must end in .md or .json"),
        (json.dumps(row(1)), ("--report", "/dev/null/r.md"), "/dev/null/r.md: cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_trained_on_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, options: tuple[str, ...], message: str
) -> None:
    assert train(tmp_path, [content], *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "model.npz").exists()


def test_an_unreadable_file_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: cannot be read: No such file or directory" in capsys.readouterr().err
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(row(1)).encode() * 200)[:60])
    assert main(["train", str(cut)]) == 2
    assert "cut.jsonl.gz: cannot be read" in capsys.readouterr().err


def test_gzipped_rows_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in rows(5)).encode()))
    reading = read_rows(path)
    assert (len(reading.rows), reading.problems) == (5, [])
    assert {found.source for found in reading.rows} == {"chat-a", "mail-b"}
