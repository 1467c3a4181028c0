"""The fingerprint of an engine: the same for all engines that give the same answers, and for no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings

from tests.engine.requests_and_answers import Make


@pytest.fixture
def copied(pair_folder: Path, tmp_path: Path) -> Path:
    """The target in another folder."""
    return shutil.copytree(pair_folder / "target", tmp_path / "copy")


def _fingerprint(folder: Path) -> str:
    return load_engine(EngineSettings(target=str(folder), device="cpu")).fingerprint


def test_it_does_not_depend_on_the_draft_the_limits_or_the_folder(make_engine: Make, copied: Path) -> None:
    engines = [make_engine(draft, max_slots=slots) for draft, slots in ((None, 1), ("close", 2), ("ngram", 4))]
    assert {engine.fingerprint for engine in engines} == {_fingerprint(copied)}
    assert EngineService(engines[0]).facts().fingerprint == engines[0].fingerprint


def test_it_changes_with_the_weights_the_tokenizer_and_the_number_format(make_engine: Make, copied: Path) -> None:
    found = {make_engine(None).fingerprint, make_engine(None, dtype="bfloat16").fingerprint}
    weights = load_file(copied / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + torch.tensor(1e-3)
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    found.add(_fingerprint(copied))
    settings = copied / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("{{ m.content }}", "{{ m.content }}!"))
    found.add(_fingerprint(copied))
    assert len(found) == 4
