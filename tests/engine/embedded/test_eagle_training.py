"""An EAGLE head of the embedded target, trained for seconds: answers are collected and taken up, the head drafts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from slipstream_engine.embedded import TARGET_DIR
from slipstream_engine.embedded.corpus import example
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.text.tokenizer import Tokenizer
from slipstream_training import collect, command
from slipstream_training.answers import read_rows
from slipstream_training.models.eagle_draft import frequent_tokens
from slipstream_training.rows import Row

from tests.engine.requests_and_answers import drain, generation_request, tokens_of


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    messages = [_messages(5, number) for number in range(192)]
    unusable: list[list[dict[str, str]]] = [[{"role": "user", "content": "word " * 3000}]]
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in unusable + messages))
    return file


def _messages(seed: int, number: int) -> list[dict[str, str]]:
    """A prompt of the target's corpus with a short answer."""
    messages = example(seed, number, mix={"status": 1.0}).messages
    return [{"role": message.role, "content": message.content} for message in messages]


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    collect.main()


@pytest.mark.slow  # a training; tests/engine/test_eagle.py has heads
def test_a_head_is_trained_on_the_targets_answers_and_drafts(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collected, head = tmp_path / "answers.jsonl", tmp_path / "head"
    options = ("--target", TARGET_DIR, "--prompts", prompts, "--out", collected)
    _run(monkeypatch, *options, "--tokens", 0.001)
    first = len(collected.read_bytes().splitlines())
    _run(monkeypatch, *options)  # goes on with other prompts
    tokenizer = Tokenizer.load(TARGET_DIR)
    rows = read_rows(collected.read_bytes().splitlines(), context_tokens=2048, vocabulary=2048).rows
    assert 0 < first < 180 < len(rows)
    assert len({tuple(row.ids[: row.prompt_tokens].tolist()) for row in rows}) > 180
    assert sum(int(row.ids[-1]) in tokenizer.eos_ids for row in rows) > 180

    train = ("--target", TARGET_DIR, "--answers", collected, "--output", head, "--new", "eagle", "--passes", 12)
    assert command.main([*map(str, train), "--draft-tokens", "3"]) == 0
    before, after = re.findall(r"([\d.]+) (?:before|after)", capsys.readouterr().err)
    assert float(after) > max(1.3, float(before))  # the most frequent token is a fifteenth of the answers

    engine = load_engine(EngineSettings(target=str(TARGET_DIR), draft=str(head), draft_kind="model", threads=1))
    ids = tokenizer.render_chat(_messages(6, 0))
    requests = [
        generation_request(name, prompt_ids=tuple(ids), max_tokens=64, draft_tokens=drafts)
        for name, drafts in (("plain", 0), ("drafted", 3))
    ]
    found = drain(engine, requests)
    assert tokens_of(found["plain"]) == tokens_of(found["drafted"])
    assert found["drafted"][-1].counts.accepted > 0


def test_frequent_tokens_are_those_of_answers() -> None:
    ids = np.array([9, 9, 9, 9, 4, 4, 3], dtype=np.int32)
    assert frequent_tokens([Row(ids, 4)], 1) == [4]
