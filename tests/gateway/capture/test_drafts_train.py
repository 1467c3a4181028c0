"""`slipstream drafts train` and `check`: captured answers become a draft that the engine serves."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.embedded.corpus import example
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.text.tokenizer import Tokenizer
from slipstream_gateway.capture.store import CaptureStore
from slipstream_tools.cli import main
from slipstream_tools.drafts import recipes

from tests.gateway.capture.captures import PAIR, captured, fill, rows_of
from tests.support.command import SLIPSTREAM
from tests.support.polling import eventually

pytestmark = pytest.mark.integration

TARGET = "embedded:target"
_TOKENIZER = Tokenizer.load(TARGET_DIR)


def _answers(count: int, **changes: Any) -> list[Any]:
    """Answers of one line about orders, with their token ids."""
    found = []
    for number in range(count):
        one = example(60_001, number, "train", {"status": 1.0})
        prompt = tuple(_TOKENIZER.render_chat(one.chat()))
        answer = (*_TOKENIZER.encode(one.answer), *_TOKENIZER.eos_ids)
        ids = {"prompt_token_ids": prompt, "token_ids": answer, "target": TARGET, "output_tokens": len(answer)}
        found.append(captured(one.answer, **(ids | changes)))
    return found


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft is too small for a second thread: that would mostly wait, and occupy a processor for it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Path]:
    def store(*answers: Any, pair: str = PAIR) -> Path:
        fill(folder := tmp_path / "captures", answers, pair=pair, redact=())
        return folder

    return store


def _train(folder: Path, output: Path, *options: str) -> list[str]:
    return ["train", "--store", str(folder), "--target", TARGET, "--output", str(output), "--device", "cpu", *options]


@pytest.mark.slow  # a training
def test_a_draft_learns_the_captured_answers_and_serves(
    store: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, output = store(*_answers(400), *_answers(1, prompt="jane@example.org", token_ids=())), tmp_path / "draft"
    assert main(["drafts", *_train(folder, output, "--draft", "embedded:draft", "--passes", "8")]) == 0
    said = capfd.readouterr().err
    assert "400 answers written, left out: 1 without the tokens of prompt and answer" in said
    assert re.search(r"400 answers, (\d+) of them held out", said)
    record = json.loads((output / "training.json").read_text())
    assert record["tokens_per_step"] > 1.05 * record["tokens_per_step_before"]
    assert record["sha256"] in subprocess.check_output(["sha256sum", output / "model.safetensors"], text=True)
    assert {path.name for path in output.iterdir()} == {
        *(path.name for path in DRAFT_DIR.iterdir()),
        "training.json",
    }
    [note] = (json.loads(path.read_text()) for path in (folder / "_audit").iterdir())
    assert (note["event"], note["output"], note["pair"]) == ("train", str(output), None)

    assert main(["drafts", "check", "--target", TARGET, "--draft", str(output)]) == 0
    settings = EngineSettings(target=TARGET, draft=str(output), draft_kind="model", device="cpu", threads=1)
    engine = load_engine(settings)
    prompt = tuple(_TOKENIZER.render_chat(example(60_002, 0, "held_out", {"status": 1.0}).chat()))
    for name, draft_tokens in (("plain", 0), ("drafted", 4)):
        engine.add(
            GenerationRequest(
                request_id=name,
                prompt_ids=prompt,
                max_tokens=40,
                sampling=SamplingParams(temperature=0.0),
                draft_tokens=draft_tokens,
            )
        )
    texts, accepted = {"plain": "", "drafted": ""}, 0
    while engine.busy:
        for chunk in engine.step():
            texts[chunk.request_id] += chunk.text
            accepted = max(accepted, chunk.counts.accepted)
    assert texts["plain"] == texts["drafted"] != ""
    assert accepted > 0


def test_a_new_draft_starts_from_nothing(store: Callable[..., Path], tmp_path: Path) -> None:
    output = tmp_path / "draft"
    assert main(["drafts", *_train(store(*_answers(60)), output, "--new", "1x64", "--passes", "2")]) == 0
    config = json.loads((output / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (1, 64, 2048)
    assert main(["drafts", "check", "--target", TARGET, "--draft", str(output)]) == 0


@pytest.mark.slow  # trainings
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_an_interrupted_training_goes_on(
    store: Callable[..., Path], tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    folder, output = store(*_answers(200)), tmp_path / "draft"
    command = [
        *(*SLIPSTREAM, "drafts"),
        *_train(folder, output, "--draft", "embedded:draft", "--passes", "7"),
    ]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
        eventually(lambda: "step 25" in log.read_text(), "a first line of progress")
        for child in psutil.Process(process.pid).children() if to_all else []:  # as Ctrl-C in a terminal
            child.send_signal(number)
        process.send_signal(number)
        assert process.wait(60) == 130
    assert "interrupted: the same command goes on at step" in log.read_text()
    assert {path.name for path in output.iterdir()} == {".training"}

    other = subprocess.run(
        [*command[:-4], "--new", "1x64", "--passes", "7"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert other.returncode == 1
    assert "is of another training (embedded:draft, 7 passes, seed 17, not 1x64, 7 passes, seed 17)" in other.stderr
    state = output / ".training" / "trainer.pt"
    kept = state.read_bytes()
    state.write_bytes(kept[:1000])
    broken = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (broken.returncode, "Traceback" in broken.stderr) == (1, False)
    assert "cannot be resumed from" in broken.stderr
    state.write_bytes(kept)

    store(*_answers(20, request_id="later"))  # capture goes on meanwhile
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resumes at step" in done.stderr
    assert not (output / ".training").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draft", "embedded:smollm2-eagle"], "is an EAGLE head"),
        (["--draft", "nowhere"], "checkpoint 'nowhere': there is no config.json in nowhere"),
        (["--new", "3"], "--new is LAYERSxHIDDEN, with a multiple of 32 for HIDDEN, such as 1x192; got '3'"),
        (["--new", "1x50"], "got '1x50'"),
        ([], "give --draft FOLDER to start from, or --new LAYERSxHIDDEN"),
        (["--new", "1x64", "--class", "code"], "has no captured answers for --class code"),
        (["--new", "1x64", "--method", "eagle3"], "--new is not for --method eagle3"),
    ],
)
def test_bad_options_are_named(
    store: Callable[..., Path],
    tmp_path: Path,
    options: list[str],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["drafts", *_train(store(*_answers(41)), tmp_path / "draft", *options)]) != 0
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_the_number_of_passes_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["drafts", *_train(tmp_path, tmp_path / "draft", "--draft", "embedded:draft", "--passes", "0")])
    assert "expected a whole number from 1 to 1000, got '0'" in capsys.readouterr().err


def test_answers_that_do_not_fit_are_refused(
    store: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start = ("--draft", "embedded:draft")
    folder = store(*_answers(5))
    assert main(["drafts", *_train(folder, tmp_path / "draft", *start)]) == 1
    assert "5 answers: training needs at least 40" in capfd.readouterr().err
    store(*_answers(40, token_ids=(5, 4000)))
    assert main(["drafts", *_train(folder, tmp_path / "draft", *start)]) == 1
    assert "has the token id 4000, and the target has 2048 tokens" in capfd.readouterr().err
    store(*_answers(1, target="models/other"))
    assert main(["drafts", *_train(folder, tmp_path / "draft", *start)]) == 1
    assert "the answers are of several targets" in capfd.readouterr().err
    assert not (tmp_path / "draft" / "model.safetensors").exists()


def test_an_output_with_other_files_is_left_alone(
    store: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "draft"
    shutil.copytree(DRAFT_DIR, output)
    assert main(["drafts", *_train(store(*_answers(41)), output, "--draft", "embedded:draft")]) == 1
    assert "is not empty, and has no interrupted training to resume" in capfd.readouterr().err
    assert (output / "model.safetensors").read_bytes() == (DRAFT_DIR / "model.safetensors").read_bytes()


def _checked(draft: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    capfd.readouterr()
    status = main(["drafts", "check", "--json", "--target", str(TARGET_DIR), "--draft", str(draft)])
    findings = json.loads(capfd.readouterr().out)
    return status, {finding["check"]: (finding["verdict"], finding["message"]) for finding in findings}


def test_check_names_what_is_wrong_with_a_draft(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draft = Path(shutil.copytree(DRAFT_DIR, tmp_path / "draft"))
    (draft / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A draft\n")
    status, found = _checked(draft, capfd)
    assert status == 0
    assert {check: verdict for check, (verdict, _) in found.items()} == {
        "tokenizer": "ok",
        "shapes": "ok",
        "values": "ok",
        "size": "warning",
        "licence": "warning",
    }
    assert found["size"][1] == "0.9 M parameters, 25.6% of the target's"
    assert found["licence"][1] == "none found for the target, apache-2.0 for the draft"

    weights = load_file(draft / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, draft / "model.safetensors")
    status, found = _checked(draft, capfd)
    assert status == 1
    assert "tensor 'model.norm.weight' has values that are not finite" in found["values"][1]

    weights["model.norm.weight"] = torch.ones(8)
    save_file(weights, draft / "model.safetensors")
    status, found = _checked(draft, capfd)
    assert status == 1
    assert "model.norm.weight has shape [8], config.json says [192]" in found["shapes"][1]

    vocabulary = json.loads((draft / "tokenizer.json").read_text())
    ids = vocabulary["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (draft / "tokenizer.json").write_text(json.dumps(vocabulary))
    status, found = _checked(draft, capfd)
    assert status == 1
    assert found["tokenizer"][0] == "failed"


def test_check_reports_files_that_it_cannot_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draft = Path(shutil.copytree(DRAFT_DIR, tmp_path / "draft"))
    (draft / "LICENSE").write_bytes(b"Caf\xe9 licence\n")
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    status, found = _checked(draft, capfd)
    assert status == 1
    assert (found["shapes"][0], found["values"][0], found["size"][0]) == ("failed", "failed", "warning")
    assert "licence for the draft" in found["licence"][1]


def test_answers_without_tokens_write_no_commands(
    store: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--method", "eagle3", "--target", str(TARGET_DIR), "--output", str(tmp_path / "out")]
    folder = store(*_answers(2, token_ids=(), prompt_token_ids=()))
    assert main(["drafts", "train", "--store", str(folder), *options]) == 1
    assert "is empty: no answer has the tokens of prompt and answer" in capsys.readouterr().err


def test_check_says_which_folder_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["drafts", "check", "--target", TARGET, "--draft", str(tmp_path)]) == 2
    assert f"there is no config.json in {tmp_path}" in capfd.readouterr().err


@pytest.mark.parametrize("method", recipes.METHODS)
def test_other_methods_write_their_commands(
    method: str, store: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output, target = store(*_answers(3)), tmp_path / "out", str(TARGET_DIR)
    options = ["--method", method, "--target", target, "--output", str(output)]
    assert main(["drafts", "train", "--store", str(folder), *options]) == 0
    rows = [json.loads(line) for line in (output / "answers.jsonl").read_text().splitlines()]
    assert [row["input_ids"] for row in rows] == [
        [*row["prompt_token_ids"], *row["token_ids"]] for row in rows_of(CaptureStore.at(str(folder)))
    ]
    subprocess.run(["sh", "-n", output / "train.sh"], check=True)
    lines = (output / "train.sh").read_text().splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith(("speculators", "slipstream"))]
    assert commands[0][:2] == ["speculators", "prepare-data"]
    assert commands[1][commands[1].index("--speculator-type") + 1] == method
    assert commands[2][:3] == ["slipstream", "drafts", "check"]
    assert len(commands) == (4 if method == "mtp" else 3)
    assert "delete" in capsys.readouterr().err
    assert (output.stat().st_mode & 0o777) == 0o700
    assert "umask 077" in "".join(lines)


def test_commands_need_a_target_s_configuration(
    store: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--method", "mtp", "--target", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main(["drafts", "train", "--store", str(store(*_answers(1))), *options]) == 1
    assert "config.json does not name its layers, vocabulary and context" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
