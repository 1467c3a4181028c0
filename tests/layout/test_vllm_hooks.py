"""The record of vLLM's functions that the plugin uses: complete, and compared with another release."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.support.vllm_hooks import RECORD, changes, hashes_of, hooks
from tests.support.vllm_hooks import tested_versions as known_releases

EXTENDED_V2 = "0.32.0"  # the plugin leaves the V2 runner of earlier releases alone
OF_V2 = {f"{module}.{path}" for module, path in hooks() if ".worker.gpu." in module}
NAMES = {f"{module}.{path}" for module, path in hooks()}
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"


def wheel(folder: Path, scheduler: str) -> Path:
    file = folder / "vllm-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("vllm/v1/core/sched/scheduler.py", scheduler)
    return file


def test_the_record_has_every_hook_of_every_tested_release() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert list(recorded) == sorted(known_releases())
    for version, hashes in recorded.items():
        assert hashes.keys() == NAMES, version
        lacking = {name for name, value in hashes.items() if value is None}
        assert lacking <= (set() if version >= EXTENDED_V2 else OF_V2), version


def test_a_changed_and_a_missing_function_are_named_and_comments_do_not_count(tmp_path: Path) -> None:
    method = "class Scheduler:\n    def schedule(self):\n        return {}\n    def add_request(self): ...\n"
    before = hashes_of(wheel(tmp_path, method.format(1)))
    assert changes(before, hashes_of(wheel(tmp_path, f"# New.\n{method.format(1)}"))) == []
    after = hashes_of(wheel(tmp_path, method.format(2).replace("add_request", "add_requests")))
    assert changes(before, after) == [f"gone: {SCHEDULER}.add_request", f"changed: {SCHEDULER}.schedule"]
