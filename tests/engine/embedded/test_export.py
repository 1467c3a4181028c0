"""Exporting a pair refuses what must not ship, and writes nothing then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from embedded_training import export
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR


def _pair(folder: Path) -> tuple[Path, Path]:
    for source, name in ((TARGET_DIR, "target"), (DRAFT_DIR, "draft")):
        shutil.copytree(source, folder / name)
    return folder / "target", folder / "draft"


def test_export_copies_what_serving_needs_and_nothing_else(tmp_path: Path) -> None:
    target, draft = _pair(tmp_path)
    (target / "trainer.pt").write_bytes(b"state")
    out = tmp_path / "out"
    size = export.export_pair(target, draft, target_out=out / "target", draft_out=out / "draft")
    assert {path.name for path in (out / "target").iterdir()} == set(export.FILES)
    assert size == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def test_export_refuses_a_draft_with_another_tokenizer(tmp_path: Path) -> None:
    target, draft = _pair(tmp_path)
    (draft / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="different tokenizers"):
        export.export_pair(target, draft, target_out=tmp_path / "out", draft_out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export_refuses_a_pair_that_is_too_large(tmp_path: Path) -> None:
    target, draft = _pair(tmp_path)
    with (target / "model.safetensors").open("ab") as weights:
        weights.truncate(export.MAX_BYTES)
    with pytest.raises(ValueError, match="more than"):
        export.export_pair(target, draft, target_out=tmp_path / "out", draft_out=tmp_path / "out")
