"""`slipstream drafts` on stores that the writer has filled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from slipstream_gateway.capture.store import CaptureStore
from slipstream_tools.cli import main

from tests.gateway.capture.captures import PAIR, captured, fill, rows_of

Fill = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "captures"


@pytest.fixture(name="fill")
def _fill(folder: Path) -> Fill:
    return lambda *answers, **options: fill(folder, answers, **options)


def run(folder: Path, *arguments: str) -> int:
    action, *others = arguments
    return main(["drafts", action, "--store", str(folder), *others])


def test_answers_are_listed_by_pair_and_day(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(captured(), captured())
    fill(captured(pair="other"), pair="other")
    assert run(folder, "list", "--json") == 0
    days = json.loads(capsys.readouterr().out)
    assert [(day["pair"], day["answers"], day["tokens"], day["files"]) for day in days] == [
        ("other", 1, 3, 1),
        ("serving.acme", 2, 6, 1),
    ]
    assert run(folder, "list", "--pair", PAIR) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["pair", "date", "answers", "tokens", "files", "bytes"]
    assert line.split()[0] == "serving.acme"


def test_statistics_show_where_the_draft_fails(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(
        captured(drafted=8, accepted=2, steps=2, output_tokens=4, rejected_at=(1, 1)),
        captured(drafted=8, accepted=6, steps=2, output_tokens=8, rejected_at=(0, 0, 1)),
        captured(arm="plain", draft_length=0, drafted=0, accepted=0, steps=9, output_tokens=9, rejected_at=()),
        captured(
            prompt="jane@example.org", request_class="code/long", arm="plain", steps=0, drafted=0, output_tokens=1
        ),
    )
    assert run(folder, "stats", "--json") == 0
    chats, code = json.loads(capsys.readouterr().out)
    assert chats == {
        "class": "open_chat/short",
        "answers": 3,
        "exact": 3,
        "prompt_tokens": 6,
        "tokens": 21,
        "acceptance": 0.5,
        "tokens_per_step": 3.0,
        "rejected_by_position": [0.25, 0.25, 0.25],
    }
    assert (code["class"], code["exact"], code["acceptance"], code["tokens_per_step"]) == ("code/long", 0, None, None)
    assert run(folder, "stats", "--class", "open_chat") == 0
    assert "25% 25% 25%" in capsys.readouterr().out


def test_rows_for_speculators(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(captured(), captured(prompt_token_ids=()), captured(prompt="jane@example.org"))
    assert run(folder, "export", "--format", "speculators") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"input_ids": [1, 2, 5, 6, 7], "loss_mask": [0, 0, 1, 1, 1]}
    ]
    expected = "1 answers written, left out: 1 redacted, so without tokens; 1 without the tokens of prompt and answer"
    assert err.strip() == expected


def test_conversations_for_specforge(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat = {"model": "acme", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    call = b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f"}}]},"finish_reason":"tool_calls"}]}'
    fill(
        captured("Hello"),
        captured(body=chat, wire=(call,)),
        captured(body={"model": "acme", "prompt": "Once"}),
    )
    assert run(folder, "export", "--format", "specforge") == 0
    out, err = capsys.readouterr()
    user, assistant = {"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Hello"}
    assert [json.loads(line) for line in out.splitlines()] == [{"id": "r-1", "conversations": [user, assistant]}]
    assert err.strip() == "1 answers written, left out: 1 not a chat; 1 with reasoning or tool calls"


def test_all_columns_in_a_new_file(fill: Fill, folder: Path, tmp_path: Path) -> None:
    fill(captured())
    output = tmp_path / "rows.jsonl"
    assert run(folder, "export", "--format", "jsonl", "--output", str(output)) == 0
    [row] = [json.loads(line) for line in output.read_text().splitlines()]
    assert (row["answer"], row["token_ids"], row["key"]) == ("Fine, thank you.", [5, 6, 7], "team-a")
    assert run(folder, "export", "--format", "jsonl", "--output", str(output)) == 1
    assert len(output.read_text().splitlines()) == 1


def test_a_key_is_forgotten(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(captured(), captured(key="team-b"), captured())
    fill(captured())
    fill(captured(key="team-b"))
    assert run(folder, "forget", "--key", "team-a") == 0
    assert capsys.readouterr().err == "3 answers in 2 files deleted\n"
    assert [row["key"] for row in rows_of(CaptureStore.at(str(folder)))] == ["team-b", "team-b"]
    assert b"team-a" not in b"".join(path.read_bytes() for path in folder.rglob("*.parquet"))
    [note] = [json.loads(path.read_text()) for path in (folder / "_audit").iterdir()]
    assert (note["event"], note["key"]) == ("forget", "team-a")


def test_a_damaged_file_keeps_no_other(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(captured())
    [damaged] = folder.rglob("*.parquet")
    fill(captured(), captured(key="team-b"))
    damaged.write_bytes(b"no Parquet")
    assert run(folder, "forget", "--key", "team-a") == 1
    assert f"{damaged} is not a Parquet file" in capsys.readouterr().err
    damaged.unlink()
    assert [row["key"] for row in rows_of(CaptureStore.at(str(folder)))] == ["team-b"]
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.parquet")} == {0o600}
    assert len(list((folder / "_audit").iterdir())) == 1


def test_an_export_is_on_record_before_its_first_row(fill: Fill, folder: Path) -> None:
    fill(captured())
    assert run(folder, "export", "--format", "jsonl", "--output", str(folder / "no" / "folder")) == 1
    [note] = [json.loads(path.read_text()) for path in (folder / "_audit").iterdir()]
    assert (note["event"], note["format"]) == ("export", "jsonl")
    assert note["user"]


def test_everything_before_a_day_is_forgotten(fill: Fill, folder: Path) -> None:
    fill(captured())
    assert run(folder, "forget", "--before", "2020-01-01") == 1
    assert len(rows_of(CaptureStore.at(str(folder)))) == 1
    assert run(folder, "forget", "--before", "2999-01-01") == 0
    assert rows_of(CaptureStore.at(str(folder))) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list",), "has no captured answers."),
        (("stats", "--pair", "acme", "--class", "code"), "has no captured answers for --pair acme, --class code."),
        (("forget",), "give --key ID or --before DATE."),
        (("forget", "--key", "nobody"), "has no captured answers of the key nobody."),
        (("forget", "--pair", "", "--before", "2999-01-01"), "a pair is [NAMESPACE/]NAME, got ''"),
    ],
)
def test_an_error_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(folder, *arguments) != 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("slipstream: error: ")
    assert line.endswith(message)


def test_a_damaged_file_is_named(fill: Fill, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(captured())
    [path] = folder.rglob("*.parquet")
    path.write_bytes(b"no Parquet")
    assert run(folder, "list") == 1
    assert f"{path} is not a Parquet file" in capsys.readouterr().err
