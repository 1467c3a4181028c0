"""`slipstream route`: the decision for a body, as text and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from slipstream_tools.cli import main

TRANSCRIPT = "Agent: How can I help?\nCustomer: My router drops the line.\nAgent: I have restarted it.\n" * 4
EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


def body(folder: Path, content: str, **fields: object) -> str:
    path = folder / "body.json"
    message = {"role": "user", "content": content}
    path.write_text(json.dumps({"model": "slipstream-embedded", "messages": [message], **fields}))
    return str(path)


def test_a_long_summary_is_explained_in_words_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", body(tmp_path, f"Summarise this call for the CRM.\n\n{TRANSCRIPT}")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "arm speculative" in lines
    assert "class summarization/long" in lines
    [reason] = [line for line in lines if line.startswith("reason speculation_pays: about")]
    assert reason.endswith("% of the time; no answer has been timed yet")
    assert "output tokens level prior" in lines
    assert any(line.startswith("task summarization: ") and "summarise" in line for line in lines)


def test_a_one_line_status_stays_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = body(tmp_path, "One-line status for order 4711, please.\nOrder 4711: lamp, status: in transit")
    assert main(["route", "--json", path]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["arm"], value["reason"], value["draft_length"]) == ("plain", "break_even", 0)
    assert value["saving_s"] is None
    assert value["numbers"]["saving_share"] < value["numbers"]["margin_share"]


def test_the_body_may_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.dumps({"model": "slipstream-embedded", "prompt": "Hello there"}).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["route", "--mode", "plain", "-"]) == 0
    assert "client_asked: the client asked for plain" in capsys.readouterr().out


def test_another_manifest_may_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = body(tmp_path, "Write a poem about the sea.", model="my-model")
    assert main(["route", "-f", str(EXAMPLES / "own-pair.yaml"), path]) == 0
    assert "class_disabled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fields", "expected"),
    [
        ([], {"model": "gpt-9"}, "The model 'gpt-9' does not exist. The manifest has: slipstream-embedded."),
        ([], {"tools": [{"type": "function"}]}, "'tools' is not supported by the model 'slipstream-embedded'"),
        ([], {"messages": []}, "messages"),
        (["-f", "no-such.yaml"], {}, "no-such.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_decided_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    fields: dict[str, object],
    expected: str,
) -> None:
    assert main(["route", *arguments, body(tmp_path, "Hello", **fields)]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert expected in line


def test_a_missing_body_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "no-such.json"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "slipstream: error: no-such.json: cannot be read: No such file or directory"
    ]
