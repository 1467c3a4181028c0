"""Every block of commands in README.md and docs/ is executed by a test, or says why not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doc_blocks import ROOT, Block, blocks_of, find, pages

EXECUTABLE = {"sh", "bash", "console", "python", "yaml"}
OTHERS = {"text", "json", "nginx", "dockerfile"}
PROGRAMS = ("make ", "slipstream ", "pip ", "helm ", "kubectl ", "curl ", "docker ", "python ", "vllm ", "$ ")
HINT = "run it in a test (@runs of tests/support/doc_blocks.py), or write above it <!-- not run: the reason -->"


def executed() -> Iterator[tuple[str, Block]]:
    """Each test that executes a block, by its decorator, and the block."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "tests.support.doc_blocks" in text:
            for page, beginning, name in decorated(ast.parse(text)):
                yield f"{path.relative_to(ROOT)}::{name}", find(page, beginning)


def decorated(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Page, beginning of the block, and name of the test."""
    for test in (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
        for call in (node for node in test.decorator_list if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            given = [ast.literal_eval(argument) for argument in call.args] if name.startswith("runs") else []
            if name == "runs":
                given = [(given[0], beginning) for beginning in given[1:]]
            for page, beginning in given:
                yield page, beginning, test.name


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return [block for page in pages() for block in blocks_of(page)]


@pytest.fixture(scope="module")
def tests_of() -> dict[Block, list[str]]:
    found: dict[Block, list[str]] = {}
    for test, block in executed():
        found.setdefault(block, []).append(test)
    return found


def test_every_block_of_commands_is_executed_or_says_why_not(
    blocks: list[Block], tests_of: dict[Block, list[str]]
) -> None:
    asked = [block for block in blocks if block.language in EXECUTABLE]
    silent = [f"{block}: {HINT}" for block in asked if block not in tests_of and not block.reason]
    excused = [f"{block}: not run: {block.reason}" for block in asked if block.reason]
    assert silent == [], "\n".join([*silent, "Those with a reason:", *excused])
    assert len(tests_of) > len(excused)


def test_no_block_that_is_executed_says_that_it_is_not(tests_of: dict[Block, list[str]]) -> None:
    assert [f"{block}: {tests}" for block, tests in tests_of.items() if block.reason is not None] == []


def test_every_block_names_its_language(blocks: list[Block]) -> None:
    assert [str(block) for block in blocks if block.language not in EXECUTABLE | OTHERS] == []


def test_commands_stand_in_fenced_blocks() -> None:
    """An indented block has no language, and its mark would not be found."""
    found = []
    for page in pages():
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines[1:], 2):
            is_first = not lines[number - 2].strip() and line.startswith("    ")
            if is_first and line.strip().startswith(PROGRAMS) and not is_fenced(lines[: number - 1]):
                found.append(f"{page}:{number} {line.strip()}")
    assert found == []


def is_fenced(before: list[str]) -> bool:
    return sum(line.strip().startswith("```") for line in before) % 2 == 1


def test_marks_are_those_of_the_block_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.doc_blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: it needs a GPU -->\n```sh\nmake one\n```\n\n```console\n$ two \\\n    --more\nprinted\n"
        "$ three 'a\nb'\n```\n\n1. <!-- not run: -->\n    ```sh\n    four\n    ```\n",
        encoding="utf-8",
    )
    one, two, four = blocks_of("page.md")
    assert (one.reason, two.reason, four.reason) == ("it needs a GPU", None, "")
    assert (one.line, one.commands) == (2, ["make one"])
    assert (two.commands, two.output) == (["two \\\n    --more", "three 'a\nb'"], "")
    assert four.commands == ["four"]
