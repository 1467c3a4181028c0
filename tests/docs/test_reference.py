"""The reference says what the code does, and every link of the documentation leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """What the generator makes now, in a process of its own: help texts are folded by the terminal's width."""
    code = "import json; from docs.generate.__main__ import files; "
    code += "print(json.dumps({str(path): text for path, text in files().items()}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_what_is_committed_is_what_the_code_makes(made: dict[str, str]) -> None:
    """`make docs` makes it anew."""
    stale = [name for name, text in made.items() if (ROOT / "docs" / name).read_text(encoding="utf-8") != text]
    assert stale == []


def test_nothing_stale_lies_in_the_reference(made: dict[str, str]) -> None:
    lying = {f"reference/{path.name}" for path in (ROOT / "docs" / "reference").iterdir()}
    assert lying == {name for name in made if name.startswith("reference/")}


def test_the_site_builds_strictly_and_asks_nothing_of_other_servers(tmp_path: Path) -> None:
    # Not --quiet: it hides warnings from --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = re.compile(r'<(?:script|img|link)[^>]*?(?:src|href)="(?:https?:)?//[^"]*"')
    for page in tmp_path.rglob("*.html"):
        assert loaded.findall(page.read_text(encoding="utf-8")) == [], page
    assert not (tmp_path / "generate").exists()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "kernels/NOTES.md"])
def test_links_outside_the_site_lead_to_files(name: str) -> None:
    page = ROOT / name
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
