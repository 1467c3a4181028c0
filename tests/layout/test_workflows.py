"""GitHub's workflows run commands that a developer can run: targets of the Makefile, container files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z-]+)[a-z -]*:", (ROOT / "Makefile").read_text(), re.MULTILINE))


def texts(value: object) -> Iterator[str]:
    """All texts in a document."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(part)


def test_there_are_two() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_exist(path: Path) -> None:
    found = list(texts(yaml.safe_load(path.read_text())))
    commands = [line for text in found for line in text.splitlines() if line.startswith("make ")]
    assert commands
    for command in commands:
        asked = [word for word in command.partition("ARGS")[0].split()[1:] if not word.startswith("-")]
        assert set(asked) <= TARGETS, command


def test_ci_runs_what_its_script_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    workflow = WORKFLOWS[0].read_text()
    for target in re.findall(r"^step make ([a-z-]+)", script, re.MULTILINE):
        assert re.search(rf"make (?:[a-z-]+ )*{target}\b", workflow), target


def test_every_image_that_is_built_here_is_released() -> None:
    release = yaml.safe_load(WORKFLOWS[1].read_text())["jobs"]["images"]["strategy"]["matrix"]["include"]
    for one in release:
        path = ROOT / "deploy" / "docker" / f"{one['name']}.Dockerfile"
        base = re.search(r"^FROM (debian:[\d.]+)-slim", path.read_text(), re.MULTILINE)
        assert base is not None
        assert base[1] in WORKFLOWS[0].read_text(), "tests run on another Debian"
