"""`slipstream drafts follow`: a draft that has become worse raises an event, and the next draft is trained."""

from __future__ import annotations

import datetime
import json
import random
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.drift import ESTABLISHED, WINDOW, Answer, Drift, DriftDetector
from slipstream_engine.drafts.candidates import CandidateWatch
from slipstream_engine.embedded import TARGET_DIR
from slipstream_engine.embedded.corpus import example
from slipstream_engine.serving.loading import load
from slipstream_engine.settings import EngineSettings
from slipstream_engine.text.tokenizer import Tokenizer
from slipstream_gateway.capture.frames import Captured
from slipstream_tools.cli import main

from tests.gateway.capture.captures import PAIR, captured, fill
from tests.support.command import SLIPSTREAM
from tests.support.polling import eventually

pytestmark = pytest.mark.integration

BEGAN_S = 1_790_000_000.0
CLASS = "extraction/short"
GOOD, BAD, WORSE = 4.0, 2.0, 1.3
LIMIT_S = 120.0  # on a busy machine
_TOKENIZER = Tokenizer.load(TARGET_DIR)


def answer(number: int, rng: random.Random, tokens_per_step: float, acceptance: float = 0.6) -> Answer:
    """An answer of some 60 tokens."""
    tokens = rng.randint(40, 80)
    steps = max(1, round(tokens / tokens_per_step * rng.lognormvariate(0.0, 0.25)))
    drafted = 4 * steps
    at = datetime.datetime.fromtimestamp(BEGAN_S + number, datetime.UTC)
    return Answer(at, tokens, steps, drafted, round(acceptance * drafted))


def judged(answers: Iterable[tuple[str, Answer]], **known: datetime.datetime) -> list[Drift]:
    detector = DriftDetector(known)
    return [drift for name, one in answers if (drift := detector.add(name, one)) is not None]


def test_traffic_that_stays_the_same_shows_no_drift() -> None:
    rng = random.Random(1)
    classes = {"a": 3.0, "b": 1.5, "c": 2.2}
    names = [rng.choice([*classes]) for _ in range(30_000)]
    assert judged((name, answer(number, rng, classes[name])) for number, name in enumerate(names)) == []


@pytest.mark.parametrize("factor", [0.85, 0.5])
def test_a_class_that_becomes_worse_is_found_once(factor: float) -> None:
    rng = random.Random(2)
    shift_at = 1200
    answers = []
    for number in range(5000):
        rate = 3.0 * (factor if number >= shift_at and number % 2 else 1.0)
        answers.append(("ab"[number % 2], answer(number, rng, rate, 0.6 * min(1.0, rate / 3.0))))
    [drift] = judged(answers)
    assert drift.request_class == "b"
    assert (drift.time.timestamp() - BEGAN_S) - shift_at < 5 * WINDOW  # every other answer is of the class
    assert drift.after < 0.95 * drift.before
    # A later run does not raise the same drift again.
    assert judged(answers, b=drift.time) == []


def test_shorter_drafts_under_load_are_no_drift() -> None:
    rng = random.Random(3)
    answers = [("a", answer(number, rng, 3.0, 0.6)) for number in range(600)]
    answers += [("a", answer(number, rng, 1.8, 0.8)) for number in range(600, 1200)]
    assert judged(answers) == []


def test_a_rare_class_is_not_new_traffic() -> None:
    rng = random.Random(5)
    classes = ["a" if number < ESTABLISHED or rng.random() < 0.95 else "rare" for number in range(20_000)]
    rates = {"a": 3.0, "rare": 1.5}
    assert (
        judged((name, answer(number, rng, rates[name], 0.2 * rates[name])) for number, name in enumerate(classes)) == []
    )


def test_a_new_class_is_compared_with_all_classes() -> None:
    rng = random.Random(4)
    answers = [("a", answer(number, rng, 3.0)) for number in range(ESTABLISHED)]
    answers += [("new", answer(number, rng, 1.5, 0.3)) for number in range(ESTABLISHED, ESTABLISHED + 2 * WINDOW)]
    answers += [("new", answer(number, rng, 1.5, 0.3)) for number in range(ESTABLISHED + 2 * WINDOW, 5000)]
    [drift] = judged(answers)  # what it always was is no drift
    assert (drift.request_class, drift.since.timestamp() - BEGAN_S) == ("new", ESTABLISHED + WINDOW)
    assert judged(answers[1:]) == []  # too little is known to call it new


class Store:
    """A folder of captured answers, one second apart; `put` adds a file of answers with `rate` tokens per step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def put(self, request_class: str, count: int, *, rate: float) -> None:
        fill(self.folder, (self._answer(request_class, rate) for _ in range(count)), redact=())

    def _answer(self, request_class: str, rate: float) -> Captured:
        one = example(60_001, self.count, "train", {"status": 1.0})
        ids = (*_TOKENIZER.encode(one.answer), *_TOKENIZER.eos_ids)
        rng = random.Random(self.count)
        steps = max(1, round(len(ids) / rate * rng.uniform(0.9, 1.1)))
        self.count += 1
        return captured(
            one.answer,
            request_class=request_class,
            time_s=BEGAN_S + self.count,
            target="embedded:target",
            prompt_token_ids=tuple(_TOKENIZER.render_chat(one.chat())),
            token_ids=ids,
            output_tokens=len(ids),
            steps=steps,
            drafted=4 * steps,
            accepted=round((rate - 1.0) * steps),
        )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "captures")


def _follow(store: Store, output: Path, *options: str) -> list[str]:
    return ["drafts", "follow", "--store", str(store.folder), "--pair", PAIR, "--output", str(output), *options]


def _train(*options: str) -> tuple[str, ...]:
    return "--train", "--target", "embedded:target", "--device", "cpu", *options


def _events(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow  # trainings
@pytest.mark.timeout(900)  # they leave the processors to others
def test_drift_is_an_event_once_and_a_draft_is_trained_where_allowed(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "trained"
    store.put("summary/long", 250, rate=GOOD)
    store.put(CLASS, 450, rate=GOOD)
    assert main(_follow(store, output, "--once")) == 0
    assert not (output / "events.jsonl").exists()
    store.put(CLASS, 420, rate=BAD)
    for _ in range(2):
        assert main(_follow(store, output, "--once")) == 0
    [drift] = _events(output)
    assert (drift["event"], drift["class"]) == ("drift", CLASS)
    assert drift["tokens_per_step"] < 0.7 * drift["before"]
    assert json.loads(capsys.readouterr().out) == drift

    # Answers from before the drift are no reason to train, and are not trained on.
    options = _train("--draft", "embedded:draft", "--passes", "2", "--answers")
    assert main(_follow(store, output, "--once", *options, "500")) == 0
    assert len(_events(output)) == 1
    assert main(_follow(store, output, "--once", *options, "200")) == 0
    trained = _events(output)[1]
    assert (trained["event"], trained["class"]) == ("trained", CLASS)
    assert trained["tokens_per_step"] > trained["before"]
    record = json.loads((output / trained["draft"] / "training.json").read_text())
    assert record["sha256"] == trained["sha256"]
    assert 380 <= record["answers"] + record["held_out_answers"] <= 410
    notes = [json.loads(path.read_text()) for path in (store.folder / "_audit").iterdir()]
    assert [(note["event"], note["request_class"]) for note in notes] == [("train", CLASS)]

    # An engine with this folder of candidates serves it.
    settings = EngineSettings(target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu")
    found: list[tuple[str, str]] = []
    CandidateWatch(output, load(settings)[1].load, lambda name, source, only: found.append((name, only))).look()
    assert found == [(f"{trained['draft']}-{trained['sha256'][:8]}", CLASS)]

    # With twice as many answers the training goes on from there.
    assert main(_follow(store, output, "--once", *options, "200")) == 0
    assert len(_events(output)) == 2
    store.put(CLASS, 420, rate=BAD)
    assert main(_follow(store, output, "--once", *options, "200")) == 0
    again = _events(output)[-1]
    assert json.loads((output / again["draft"] / "training.json").read_text())["draft"] == str(
        output / trained["draft"]
    )
    assert again["event"] == "trained"
    assert again["answers"] >= 2 * trained["answers"]
    assert {path.name for path in output.iterdir() if path.is_dir()} == {trained["draft"], again["draft"]}

    # The earlier run ended before its event was written: the event is written now, without another training.
    lines = (output / "events.jsonl").read_text().splitlines(keepends=True)
    (output / "events.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])
    assert main(_follow(store, output, "--once", *options, "200")) == 0
    assert {**json.loads((output / "events.jsonl").read_text().splitlines()[-1]), "time": 0} == {**again, "time": 0}
    assert len(list((store.folder / "_audit").iterdir())) == 2


def test_a_draft_that_is_no_better_is_no_candidate(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "trained"
    store.put(CLASS, 420, rate=GOOD)
    store.put(CLASS, 420, rate=BAD)

    def no_better(store: object, selection: object, options: Any, *, beside_serving: bool) -> None:
        options.output.mkdir()
        record = {"tokens_per_step": 1.2, "tokens_per_step_before": 1.3, "sha256": "0"}
        (options.output / "training.json").write_text(json.dumps(record))

    monkeypatch.setattr("slipstream_tools.drafts.training.train_llama", no_better)
    assert main(_follow(store, output, "--once", *_train("--draft", "embedded:draft", "--answers", "200"))) == 0
    assert [event["event"] for event in _events(output)] == ["drift", "not_better"]
    assert [path for path in output.iterdir() if path.is_dir()] == []


def test_answers_since_the_first_drift_count_for_a_training(store: Store, tmp_path: Path) -> None:
    output = tmp_path / "trained"
    for rate in (GOOD, BAD, WORSE):
        store.put(CLASS, 440, rate=rate)
    assert main(_follow(store, output, "--once")) == 0
    first, second = _events(output)
    assert (first["event"], second["event"]) == ("drift", "drift")
    assert first["tokens_per_step"] > 1.3 * second["tokens_per_step"]
    assert first["since"] == second["since"] < first["time"] < second["time"]


@pytest.mark.slow  # trainings
def test_a_training_that_failed_is_repeated_with_more_answers(store: Store, tmp_path: Path) -> None:
    output = tmp_path / "trained"
    store.put(CLASS, 420, rate=GOOD)
    store.put(CLASS, 420, rate=BAD)
    missing = _train("--draft", str(tmp_path / "missing"), "--answers", "200")
    for _ in range(2):
        assert main(_follow(store, output, "--once", *missing)) == 0
    assert [event["event"] for event in _events(output)] == ["drift", "not_trained"]
    store.put(CLASS, 100, rate=BAD)  # the cause may be gone by now
    assert main(_follow(store, output, "--once", *missing)) == 0
    assert [event["event"] for event in _events(output)] == ["drift", "not_trained", "not_trained"]


def test_it_goes_on_until_it_is_stopped(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    output, log = tmp_path / "trained", tmp_path / "log"
    store.put(CLASS, 420, rate=GOOD)
    [file] = store.folder.glob("*/date=*/*.parquet")
    file.with_name(f"{'0' * 32}-30d.parquet").write_bytes(b"damaged")
    command = [*SLIPSTREAM, *_follow(store, output, "--interval", "1")]
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written)
    request.addfinalizer(process.kill)
    eventually(lambda: "-30d.parquet is not a Parquet file" in log.read_text(), "the damaged file", within_s=LIMIT_S)
    pairs = store.folder / "serving.acme"
    pairs.rename(store.folder / "moved")
    pairs.write_text("no folder")  # a store that cannot be read for a while
    eventually(lambda: f"{store.folder}: " in log.read_text(), "the store's error", within_s=LIMIT_S)
    pairs.unlink()
    (store.folder / "moved").rename(pairs)
    store.put(CLASS, 420, rate=BAD)
    eventually(lambda: '"event":"drift"' in log.read_text(), "an event", within_s=LIMIT_S)
    again = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (again.returncode, again.stderr) == (
        1,
        f"slipstream: error: another process follows the traffic in {output}.\n",
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130
    assert log.read_text().count("is not a Parquet file") == 1
    assert "Traceback" not in log.read_text()


@pytest.mark.slow  # trainings
def test_a_training_that_is_stopped_goes_on(store: Store, tmp_path: Path) -> None:
    output, log = tmp_path / "trained", tmp_path / "log"
    store.put(CLASS, 420, rate=GOOD)
    store.put(CLASS, 420, rate=BAD)
    options = _follow(store, output, "--once", *_train("--new", "1x64", "--answers", "200", "--passes", "2"))
    for waits in ("answers written", "held out"):  # before the training can keep its state, and after
        with log.open("w") as written:
            process = subprocess.Popen([*SLIPSTREAM, *options], stderr=written)
        eventually(lambda waits=waits: waits in log.read_text(), waits, within_s=LIMIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 130
        assert [event["event"] for event in _events(output)] == ["drift"]
    assert main(options) == 0
    assert [event["event"] for event in _events(output)] == ["drift", "trained"]


def test_a_folder_is_for_one_pair(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "trained"
    store.put(CLASS, 420, rate=GOOD)
    store.put(CLASS, 420, rate=BAD)
    assert main(_follow(store, output, "--once")) == 0
    assert main([*_follow(store, output, "--once"), "--pair", "serving/other"]) == 1
    assert f"{output} is of the pair {PAIR}: give each pair a folder of its own." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "--pair"),
        (("--pair", PAIR, "--train"), "--train needs --target FOLDER."),
        (("--pair", PAIR, "--train", "--target", "t"), "give --draft FOLDER to start from"),
        (("--pair", "Not a name"), "a pair is [NAMESPACE/]NAME, got 'Not a name'"),
        (("--pair", PAIR, "--answers", "0"), "expected a whole number from 1 to 1000000, got '0'"),
    ],
)
def test_wrong_options_have_one_message(
    options: tuple[str, ...], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["drafts", "follow", "--store", str(tmp_path), "--output", str(tmp_path / "out"), "--once", *options]
    try:
        status = main(command)
    except SystemExit as exc:
        status = exc.code  # type: ignore[assignment]
    assert status == 2
    assert error in capsys.readouterr().err


def test_a_broken_line_of_events_is_left_out(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "trained"
    output.mkdir()
    midnight = "2026-11-27T00:00:00"
    naive = {"event": "drift", "pair": PAIR, "class": CLASS, "time": midnight, "since": midnight}
    outside = {**naive, "time": f"{midnight}Z", "since": f"{midnight}Z", "draft": "../x"}
    broken = [b'{"event": "drift"}', b"[]", b"x", b"\xff", json.dumps(naive).encode(), json.dumps(outside).encode()]
    (output / "events.jsonl").write_bytes(b"\n".join(broken))
    store.put("summary/long", 10, rate=GOOD)
    assert main(_follow(store, output, "--once")) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0].rpartition(":")[2] for line in said] == [str(n) for n in range(1, 7)]


def test_a_folder_that_cannot_be_made_is_named(
    store: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    command = ["drafts", "follow", "--store", str(tmp_path), "--pair", PAIR, "--output", str(tmp_path / "file" / "out")]
    assert main(command) == 1
    assert f"{tmp_path / 'file' / 'out'}: Not a directory" in capsys.readouterr().err


def test_an_unreadable_store_is_an_error_of_one_look(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.folder.mkdir(exist_ok=True)
    (store.folder / "serving.acme").write_text("no folder")
    assert main(_follow(store, tmp_path / "trained", "--once")) == 1
    assert "slipstream: error: " in capsys.readouterr().err
