"""Drafts that come and go while an engine serves."""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slipstream_engine.contract.protocol import DraftStanding
from slipstream_engine.contract.types import Chunk, GenerationRequest, SamplingParams
from slipstream_engine.drafts import candidates, loading
from slipstream_engine.drafts.candidates import GONE_LOOKS, MOST, CandidateWatch
from slipstream_engine.drafts.choice import DraftBandit, Standing
from slipstream_engine.serving.loading import load
from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings

from tests.support.polling import eventually

LIMIT_S = 30.0


def finish(pair_folder: Path, folder: Path, draft: str = "far", **record: str) -> str:
    """Put a draft into `folder` as a training does. Returns its name in the engine."""
    shutil.copytree(pair_folder / draft, folder)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "training.json").write_text(json.dumps({"sha256": digest, **record}))
    return f"{folder.name}-{digest[:8]}"


class _Served(EngineService):
    """The service with its watch, which looks when it is told to."""

    def __init__(self, pair_folder: Path, folder: Path) -> None:
        settings = EngineSettings(
            target=str(pair_folder / "target"),
            draft=str(pair_folder / "close"),
            draft_kind="model",
            candidates=str(folder),
            device="cpu",
            threads=1,
        )
        engine, loader = load(settings)
        super().__init__(engine)
        self.engine = engine
        self.found = CandidateWatch(folder, loader.load_added, self.change_draft)
        self.begin()

    def answers(self, group: str, *wanted: str) -> set[tuple[str, str]]:
        """Text and draft of 30 answers, and of more until each of the `wanted` drafts was chosen."""
        found: set[tuple[str, str]] = set()
        for number in range(500):
            found.add(self.ask(f"{group}-{number}", group=group))
            if number >= 29 and {draft for _, draft in found} >= {*wanted}:
                break
        return found

    def look_until_gone(self) -> None:
        """One look without a draft is not enough: its folder may be away for a moment."""
        before = self.facts().drafts
        for _ in range(GONE_LOOKS):
            assert self.facts().drafts == before
            self.found.look()

    def standings(self) -> dict[str, DraftStanding]:
        """What is known of each draft after the last answer."""
        self.facts()  # asks the step thread
        eventually(lambda: not self._standings_wanted)
        self.ask("standings", draft_tokens=0)  # whose end comes later
        return {one.draft: one for one in self.facts().draft_standings}

    def ask(self, name: str, draft_tokens: int = 3, group: str = "a") -> tuple[str, str]:
        """Text and draft of an answer."""
        chunks: queue.Queue[Chunk] = queue.Queue()
        self.submit(
            GenerationRequest(
                request_id=name,
                prompt_ids=(1, 2, 3),
                max_tokens=12,
                sampling=SamplingParams(temperature=0.9, seed=7),
                draft_tokens=draft_tokens,
                group=group,
            ),
            chunks.put,
        )
        text = ""
        while True:
            chunk = chunks.get(timeout=LIMIT_S)
            text += chunk.text
            if chunk.finish_reason is not None:
                return text, chunk.counts.draft


@pytest.fixture
def served(pair_folder: Path, tmp_path: Path) -> Iterator[_Served]:
    service = _Served(pair_folder, tmp_path / "trained")
    yield service
    service.close()


def test_a_candidate_is_served_until_its_folder_is_gone(served: _Served, pair_folder: Path, tmp_path: Path) -> None:
    plain, _ = served.ask("plain", draft_tokens=0)
    assert served.ask("before") == (plain, "close")
    served.found.look()  # the folder does not exist yet
    name = finish(pair_folder, tmp_path / "trained" / "support-1")
    served.found.look()
    served.found.look()
    assert served.answers("a", "close", name) == {(plain, "close"), (plain, name)}
    assert served.facts().drafts == ("close", name)
    standings = served.standings()
    assert standings.keys() == {"close", name}
    assert sum(one.answers for one in standings.values()) >= 28  # of 30 or more, whose weights fade

    shutil.rmtree(tmp_path / "trained" / "support-1")
    served.look_until_gone()
    eventually(lambda: served.engine._draft_source is not None and served.engine._draft_source._sources[1] is None)
    assert {served.ask(f"after-{number}") for number in range(10)} == {(plain, "close")}
    assert served.standings().keys() == {"close"}
    assert served.facts().drafts == ("close",)

    finish(pair_folder, tmp_path / "trained" / "support-1")  # the same bytes come back, and go again
    served.found.look()
    served.ask("again")
    assert served.facts().drafts == ("close", name)
    shutil.rmtree(tmp_path / "trained" / "support-1")
    served.look_until_gone()
    served.ask("gone")
    assert served.facts().drafts == ("close",)


def test_what_is_no_finished_draft_is_left_out(
    served: _Served, pair_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = tmp_path / "trained"
    finish(pair_folder, trained / "works")
    (trained / "works" / ".training").mkdir()
    changed = finish(pair_folder, trained / "changed")
    with (trained / "changed" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    broken = finish(pair_folder, trained / "broken")
    (trained / "broken" / "config.json").write_text("{")
    finish(pair_folder, trained / "unknown", sha256="")
    (trained / "unknown" / "training.json").write_text("[]")
    (trained / "file").write_text("x")
    with caplog.at_level(logging.WARNING):
        served.found.look()
        served.found.look()
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == 2, said
    assert said[0].startswith(f"candidate {broken} is left out: ")
    file = trained / "changed" / "model.safetensors"
    assert said[1] == f"candidate {changed} cannot be loaded now: the SHA-256 of {file} is not that in training.json"
    served.ask("one")
    assert served.facts().drafts == ("close",)


def test_a_candidate_waits_for_memory(
    served: _Served,
    pair_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(candidates, "RETRY_S", 0.0)
    monkeypatch.setattr(loading, "available_bytes", lambda: 1000)
    name = finish(pair_folder, tmp_path / "trained" / "support-1")
    with caplog.at_level(logging.WARNING):
        served.found.look()
        served.found.look()
    [said] = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        f"candidate {name} cannot be loaded now: it may need [0-9]+ MiB with its cache of [0-9]+ slots of "
        "[0-9]+ tokens, and 0 MiB of memory are available",
        said,
    )
    assert served.facts().drafts == ("close",)
    monkeypatch.setattr(loading, "available_bytes", lambda: None)  # not known here
    served.found.look()
    served.ask("one")
    assert served.facts().drafts == ("close", name)


def test_a_draft_for_one_class_is_a_candidate_for_no_other(served: _Served, pair_folder: Path, tmp_path: Path) -> None:
    name = finish(pair_folder, tmp_path / "trained" / "support-1", only="b")
    served.found.look()
    wanted = {"a": {"close"}, "b": {"close", name}, "b/c": {"close", name}, "bc": {"close"}}
    for group, drafts in wanted.items():
        assert {draft for _, draft in served.answers(group, *drafts)} == drafts
    served.standings()
    known = {(one.group, one.draft) for one in served.facts().draft_standings}
    assert known == {(group, draft) for group, drafts in wanted.items() for draft in drafts}


def test_a_draft_that_cannot_be_read_now_is_tried_again(
    served: _Served, pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = finish(pair_folder, tmp_path / "trained" / "support-1")
    weights = tmp_path / "trained" / "support-1" / "model.safetensors"
    weights.rename(tmp_path / "away")
    served.found.look()
    (tmp_path / "away").rename(weights)
    served.found.look()
    served.ask("soon")
    assert served.facts().drafts == ("close",)
    monkeypatch.setattr("slipstream_engine.drafts.candidates.time.monotonic", lambda: time.perf_counter() + 1e9)
    served.found.look()
    monkeypatch.undo()
    served.ask("later")
    assert served.facts().drafts == ("close", name)


def test_there_is_a_limit(served: _Served, pair_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [finish(pair_folder, tmp_path / "trained" / f"d{number}", only=f"{number}") for number in range(MOST + 1)]
    with caplog.at_level(logging.WARNING):
        served.found.look()
    served.ask("one")
    assert len(set(names) & set(served.facts().drafts)) == MOST
    assert [record.getMessage() for record in caplog.records] == [f"candidate {names[0]} waits: there are 7 already"]
    shutil.rmtree(tmp_path / "trained" / "d3")
    served.look_until_gone()
    served.ask("two")
    assert set(names) - {names[3]} < set(served.facts().drafts)

    # A newer draft takes the place of the oldest one for the same class.
    newer = [finish(pair_folder, tmp_path / "trained" / name, only="5") for name in ("e", "f")]
    served.found.look()
    served.found.look()
    served.ask("three")
    assert set(served.facts().drafts) == {"close", *names, newer[1]} - {names[3], names[5]}


def test_standings_follow_the_answers_and_are_reversible() -> None:
    choice, rng = DraftBandit(1, random.Random(3)), random.Random(4)

    def answers(count: int, costs: tuple[float, float]) -> list[int]:
        taken = []
        for _ in range(count):
            number = choice.choose("a")
            choice.learn("a", number, 100 * costs[number] * rng.lognormvariate(0.0, 0.3), 100)
            taken.append(number)
        return taken

    answers(50, (1.0, 0.0))
    assert choice.standings("a") == [Standing.UNDECIDED]
    assert choice.add() == 1
    assert choice.standings("a") == [Standing.UNDECIDED] * 2
    assert choice.standings("b") == [Standing.UNDECIDED] * 2
    assert sum(answers(200, (1.0, 1.6))) < 40
    assert choice.standings("a") == [Standing.PROMOTED, Standing.TAKEN_BACK]
    answers(3000, (1.0, 0.5))
    assert choice.standings("a") == [Standing.TAKEN_BACK, Standing.PROMOTED]
    choice.retire(1)
    assert answers(20, (1.0, 0.5)) == [0] * 20
    assert choice.standings("a")[0] == Standing.UNDECIDED
