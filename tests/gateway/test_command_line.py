"""The commands in installations that lack packages, as a newcomer has them."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from slipstream_core.installation import how_to_install
from slipstream_tools.cli import main, parsers
from slipstream_tools.drafts.export import FORMATS
from slipstream_tools.drafts.options import EXPORT_FORMATS

_ROOT = Path(__file__).resolve().parents[2]
_REQUIRED = ("msgspec", "yaml", "_yaml")  # what an installation without extras has
_SOURCES = [str(_ROOT / name) for name in ("gateway", "operator", "kernels")]


def run_without_extras(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a Python that finds the required packages alone."""
    for name in _REQUIRED:
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    code = f"import sys; sys.path[:0] = {[*_SOURCES, str(packages)]}; from slipstream_tools.cli import main; "
    command = [sys.executable, "-I", "-S", "-c", f"{code}sys.exit(main(sys.argv[1:]))", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(parsers()))
def test_help_works_without_any_extra(name: str, tmp_path: Path) -> None:
    done = run_without_extras(tmp_path, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: slipstream {name}")


@pytest.mark.integration
def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path) -> None:
    done = run_without_extras(tmp_path, "kill", "mp/a")
    assert done.returncode == 1
    assert "'slipstream kill' requires the package 'aiohttp'; run: uv pip install --python" in done.stderr


@pytest.mark.integration
def test_a_read_only_installation_is_not_told_to_run_pip(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    code = (  # root may write everywhere
        "import os, sys; from slipstream_core.installation import how_to_install; os.getuid() or os.setuid(65534); "
        "print(how_to_install('bench', sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot be changed" in done.stdout
    assert "pip install" not in done.stdout


def test_a_checkout_is_extended_by_pip_from_its_own_folder() -> None:
    root = _ROOT
    assert how_to_install("bench") == (
        f"run: {sys.executable} -m pip install -c {root}/constraints.txt -e '{root}[bench]'"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--work", "1"],
        ["bench", "--conc", "4"],
        ["kill", "mp/a", "--time", "3"],
        ["drafts", "list", "--sto", "x"],
    ],
)
def test_abbreviated_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_the_formats_of_an_export_are_those_of_its_option() -> None:
    assert tuple(FORMATS) == EXPORT_FORMATS
