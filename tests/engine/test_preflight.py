"""The comparison before any weights are loaded, as the command that a cluster runs, on real tokenizers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.errors import DraftMismatchError
from slipstream_engine.preflight import MAX_REPORT_BYTES, compare, main
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.step.engine import Engine

from tests.engine.requests_and_answers import drain, generation_request, tokens_of


def _without_weights(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors")))


def _swap_ids(folder: Path, first: str, second: str) -> tuple[int, int]:
    """Exchanges two tokens' ids in a folder's tokenizer; the ids that they had."""
    file = folder / "tokenizer.json"
    content: dict[str, Any] = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(content))
    return vocab[second], vocab[first]


@pytest.fixture
def changed_draft(tmp_path: Path) -> tuple[Path, str]:
    """The embedded draft with another tokenizer, and what is to be said of it."""
    folder = Path(shutil.copytree(DRAFT_DIR, tmp_path / "changed"))
    a, b = _swap_ids(folder, "a", "b")
    return folder, f"first, token 'a': id {a} in the target, id {b} in the draft"


def test_command_reports_a_fitting_pair_without_weights_and_without_pytorch(tmp_path: Path) -> None:
    target = _without_weights(TARGET_DIR, tmp_path / "target")
    draft = _without_weights(DRAFT_DIR, tmp_path / "draft")
    report = tmp_path / "termination-log"
    program = (
        "import sys; from slipstream_engine.preflight import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    arguments = ["--target", str(target), "--draft", str(draft), "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(report.read_bytes()) == json.loads(done.stdout)
    assert json.loads(done.stdout)["tokenizerCompatible"] is True


def test_differing_draft_is_reported_by_its_first_differing_token(
    changed_draft: tuple[Path, str], tmp_path: Path
) -> None:
    draft, expected = changed_draft
    report = tmp_path / "termination-log"
    assert main(["--target", "embedded:target", "--draft", str(draft), "--report", str(report)]) == 0
    content = json.loads(report.read_bytes())
    assert content["tokenizerCompatible"] is False
    assert expected in content["message"]


def test_tokenizers_may_lie_elsewhere(changed_draft: tuple[Path, str]) -> None:
    draft, _ = changed_draft
    fits = compare(target="embedded:target", draft=str(draft), draft_tokenizer="embedded:target")
    differs = compare(target="embedded:target", target_tokenizer=str(draft), draft="embedded:draft")
    assert (fits.tokenizer_compatible, differs.tokenizer_compatible) == (True, False)


def test_report_fits_a_termination_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = _without_weights(DRAFT_DIR, tmp_path / "draft")
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    longest = tokenizer["added_tokens"][-1] | {"content": '"ü\\' * 5000, "id": len(tokenizer["model"]["vocab"])}
    tokenizer["added_tokens"].append(longest)
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"vocab_size": 2 * config["vocab_size"]}))
    report = tmp_path / "termination-log"
    assert main(["--target", "embedded:target", "--draft", str(draft), "--report", str(report)]) == 0
    assert len(report.read_bytes()) <= MAX_REPORT_BYTES
    assert json.loads(report.read_bytes())["tokenizerCompatible"] is False
    assert json.loads(capsys.readouterr().out) == json.loads(report.read_bytes())


@pytest.mark.parametrize(
    ("broken", "expected"),
    [("config.json", "there is no config.json in"), ("tokenizer.json", "tokenizer.json: no such file")],
)
def test_unreadable_checkpoint_is_one_line_and_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str, expected: str
) -> None:
    draft = _without_weights(DRAFT_DIR, tmp_path / "draft")
    (draft / broken).unlink()
    report = tmp_path / "termination-log"
    assert main(["--target", "embedded:target", "--draft", str(draft), "--report", str(report)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err == report.read_text() + "\n"


def test_unwritable_report_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "missing" / "termination-log"
    assert main(["--target", "embedded:target", "--draft", "embedded:draft", "--report", str(report)]) == 1
    assert f"--report: cannot write {report}: No such file or directory" in capsys.readouterr().err


def _answer(engine: Engine) -> tuple[list[int], int]:
    """The tokens of one greedy answer that may have drafts, and how many it had."""
    prompt = engine.tokenizer.encode("Summarise: the customer was charged twice.")
    row = drain(engine, [generation_request(prompt_ids=prompt, max_tokens=24, draft_tokens=4)])["a"]
    return tokens_of(row), row[-1].counts.drafted


def test_engine_serves_the_target_plainly_where_it_was_told_to(
    changed_draft: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    draft, expected = changed_draft
    settings = EngineSettings(
        target="embedded:target", draft=str(draft), draft_kind="model", device="cpu", threads=1, max_slots=1
    )
    with pytest.raises(DraftMismatchError, match="vocabulary differs"):
        load_engine(settings)
    engine = load_engine(msgspec.structs.replace(settings, on_draft_mismatch="plain"))
    assert expected in caplog.text
    tokens, drafted = _answer(engine)
    assert drafted == 0
    assert tokens == _answer(load_engine(msgspec.structs.replace(settings, draft=None, draft_kind="none")))[0]


def test_engine_takes_tokenizers_from_their_own_folders(changed_draft: tuple[Path, str], tmp_path: Path) -> None:
    draft, _ = changed_draft
    target = Path(shutil.copytree(TARGET_DIR, tmp_path / "target"))
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(target / name, tokenizer / name)
    engine = load_engine(
        EngineSettings(
            target=str(target),
            tokenizer=str(tokenizer),
            draft=str(draft),
            draft_tokenizer="embedded:draft",
            draft_kind="model",
            device="cpu",
            threads=1,
            max_slots=1,
        )
    )
    whole = load_engine(
        EngineSettings(
            target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu", threads=1, max_slots=1
        )
    )
    assert engine.tokenizer.eos_ids == whole.tokenizer.eos_ids
    assert _answer(engine) == _answer(whole)
