"""An EAGLE head of the embedded target, trained for seconds: answers are collected and taken up, the head drafts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from eagle_training import answers, train
from slipstream_engine.embedded import TARGET_DIR
from slipstream_engine.embedded.corpus import example
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.tokenizer import Tokenizer

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


def _run(monkeypatch: pytest.MonkeyPatch, module: object, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    module.main()  # type: ignore[attr-defined]


def test_a_head_is_trained_on_the_targets_answers_and_drafts(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collected, head = tmp_path / "answers", tmp_path / "head"
    collect = (answers, "--target", TARGET_DIR, "--prompts", prompts, "--out", collected, "--tokens", 0.001)
    _run(monkeypatch, *collect)
    _run(monkeypatch, *collect)  # goes on with other prompts
    texts = train.read_answers(collected)
    assert len(texts) == 192
    assert len({tuple(text.ids[: text.prompt_tokens].tolist()) for text in texts}) > 180
    tokenizer = Tokenizer.load(TARGET_DIR)
    ended = sum(int(text.ids[-1]) in tokenizer.eos_ids for text in texts)
    assert ended > 180
    assert all(len(text.features) == len(text.ids) - 1 for text in texts)

    options = ("--target", TARGET_DIR, "--answers", collected, "--out", head, "--epochs", 12, "--depth", 2)
    _run(monkeypatch, train, *options)
    shares = [line.split()[4:] for line in capsys.readouterr().out.splitlines() if "held out" in line]
    assert float(shares[-1][0]) > 0.3  # the most frequent token is a fifteenth of the answers

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
    ids = torch.tensor([9, 9, 9, 9, 4, 4, 3])
    assert train.frequent_tokens([train.Text(ids, 4, torch.zeros(6, 2))], 1) == [4]
