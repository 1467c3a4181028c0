"""docs/architecture.md names every room of the gateway, and only files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = [ROOT / "gateway" / "slipstream_gateway", ROOT / "gateway", ROOT / "operator", ROOT / "kernels"]


def rooms(package: str) -> set[str]:
    """The rooms of a package, from the contract of its layers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [layers] = [found["layers"] for found in contracts if found.get("containers") == [package]]
    return {room for layer in layers for room in layer.split(" | ")}


def test_every_room_has_its_job() -> None:
    jobs = set(re.findall(r"^- `(\w+)` \(\d+\): ", PAGE, re.MULTILINE))
    assert rooms("slipstream_gateway") <= jobs


def test_files_that_are_named_exist() -> None:
    named = {path for path in re.findall(r"`([\w/]+\.py)`", PAGE) if "/" in path}
    assert len(named) >= 50
    assert [path for path in sorted(named) if not any((folder / path).is_file() for folder in PACKAGES)] == []
