"""Following a manifest file: changes come through, bad ones do not replace good ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import EMBEDDED_MANIFEST, ManifestFile, RoutingTable

GOOD = EMBEDDED_MANIFEST.read_text()
BETTER = GOOD.replace("maxDraftTokens: 6", "maxDraftTokens: 4")
BAD = GOOD.replace("maxDraftTokens: 6", "maxDraftTokens: 0")


class Log:
    """A followed file with everything it told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pair.yaml"
        self.path.write_text(GOOD)
        self.tables: list[RoutingTable] = []
        self.errors: list[ManifestError] = []
        self.told = asyncio.Event()
        self.file = ManifestFile(self.path, on_change=self._changed, on_error=self._failed)

    def _changed(self, table: RoutingTable) -> None:
        self.tables.append(table)
        self.told.set()

    def _failed(self, error: ManifestError) -> None:
        self.errors.append(error)
        self.told.set()

    def write(self, text: str) -> None:
        """Replace the file as editors and Kubernetes do: a new file is renamed over the old one."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


def draft_tokens(table: RoutingTable) -> int:
    return table.routes["slipstream-embedded"].pair.spec.max_draft_tokens


async def test_a_changed_file_gives_a_new_table(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(BETTER)
    await log.file.refresh()
    assert [draft_tokens(table) for table in log.tables] == [4]
    assert log.file.table is log.tables[0]


async def test_a_bad_file_keeps_the_good_table_and_is_reported_once(tmp_path: Path) -> None:
    log = Log(tmp_path)
    good = log.file.table
    log.write(BAD)
    await log.file.refresh()
    await log.file.refresh()
    assert log.file.table is good
    assert log.tables == []
    [error] = log.errors
    assert "spec.maxDraftTokens: must be between 1 and 32, got 0" in str(error)


async def test_a_repaired_file_is_taken_again(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for text in (BAD, BETTER, BAD, GOOD):
        log.write(text)
        await log.file.refresh()
    assert [draft_tokens(table) for table in log.tables] == [4, 6]
    assert len(log.errors) == 2


async def test_a_deleted_file_keeps_the_good_table(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.path.unlink()
    await log.file.refresh()
    await log.file.refresh()
    assert draft_tokens(log.file.table) == 6
    assert [str(error) for error in log.errors] == [f"{log.path}: cannot be read: No such file or directory"]
    log.write(BETTER)
    await log.file.refresh()
    assert draft_tokens(log.file.table) == 4


async def test_a_file_that_is_only_touched_changes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    os.utime(log.path, ns=(1, 1))
    await log.file.refresh()
    assert (log.tables, log.errors) == ([], [])


async def test_watching_notices_a_change_by_itself(tmp_path: Path) -> None:
    log = Log(tmp_path)
    watching = asyncio.create_task(log.file.watch(interval_s=0.01))
    log.write(BETTER)
    await asyncio.wait_for(log.told.wait(), timeout=20)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert draft_tokens(log.file.table) == 4


def test_a_bad_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(BAD)
    with pytest.raises(ManifestError, match=r"pair\.yaml: ModelPair/embedded: spec\.maxDraftTokens"):
        ManifestFile(path, on_change=lambda _: None, on_error=lambda _: None)


async def test_a_table_that_nobody_can_use_is_reported_and_the_watch_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(GOOD)
    used: list[int] = []
    errors: list[ManifestError] = []
    told = asyncio.Event()

    def change(table: RoutingTable) -> None:
        if draft_tokens(table) == 3:
            raise LookupError("three")
        used.append(draft_tokens(table))
        told.set()

    def fail(error: ManifestError) -> None:
        errors.append(error)
        told.set()

    file = ManifestFile(path, on_change=change, on_error=fail)
    watching = asyncio.create_task(file.watch(interval_s=0.01))
    for text, expected in ((GOOD.replace("Tokens: 6", "Tokens: 3"), 6), (BETTER, 4)):
        told.clear()
        path.write_text(text)
        await asyncio.wait_for(told.wait(), timeout=20)
        assert draft_tokens(file.table) == expected
    watching.cancel()
    assert used == [4]
    assert [str(error) for error in errors] == ["pair.yaml: cannot be used: LookupError('three')"]


async def test_a_bad_file_at_the_start_gives_way_to_the_last_good_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    kept = tmp_path / "kept.yaml"
    errors: list[str] = []

    def open_file() -> ManifestFile:
        return ManifestFile(
            log.path, on_change=lambda _: None, on_error=lambda error: errors.append(str(error)), last_good=kept
        )

    first = open_file()
    log.write(BETTER)
    await first.refresh()
    log.write(BAD)
    second = open_file()
    assert draft_tokens(second.table) == 4
    await second.refresh()
    assert len(errors) == 1
    assert "spec.maxDraftTokens" in errors[0]
    log.write(GOOD)
    await second.refresh()
    assert draft_tokens(second.table) == 6
