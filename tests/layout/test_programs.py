"""`make test` installs the programs that the tests start, or names the command that does, before the first test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import programs

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
APT_GET = """#!/bin/sh
echo "$*" >> "{folder}/calls"
[ "$1" = update ] || for program in redis-server chromium kubectl promtool; do
  echo > "{folder}/$program"; /bin/chmod +x "{folder}/$program"
done
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs of a machine without any of them. Its API server is built already."""
    assets = tmp_path / "assets"
    for name in programs.ASSETS:
        _write_program(assets / name, "#!/bin/sh\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    return tmp_path / "bin"


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _suite(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.suite", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)


def test_one_line_names_all_missing_programs_and_their_command_before_the_first_test(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "none"))
    done = _suite("-k", "test_license_is_apache_2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "missing programs: redis-server, chromium, kubectl, promtool, etcd, kube-apiserver; on Debian: "
        "sudo apt-get update -qq && sudo apt-get install -y -qq --no-install-recommends redis-server chromium "
        f"kubernetes-client prometheus && sudo .ci/build-apiserver {tmp_path}/none\n"
    )


def test_only_what_is_missing_is_named(bare: Path) -> None:
    for name in ("redis-server", "chromium", "kubectl"):
        _write_program(bare / name, "#!/bin/sh\n")
    assert programs.instruction().startswith("missing programs: promtool; on Debian: sudo apt-get")
    _write_program(bare / "promtool", "#!/bin/sh\n")
    assert programs.instruction() == ""


def test_tests_of_a_path_run_without_the_programs(bare: Path) -> None:
    done = _suite("tests/layout/test_layout.py", "-k", "test_license_is_apache_2")
    assert done.stdout.startswith(
        "missing programs: redis-server, chromium, kubectl, promtool; on Debian: sudo apt-get"
    )
    assert "1 passed" in done.stdout
    assert done.returncode == 0


def test_root_gets_the_packages_of_what_is_missing(bare: Path) -> None:
    _write_program(bare / "apt-get", APT_GET.format(folder=bare))
    _write_program(bare / "kubectl", "#!/bin/sh\n")
    said: list[str] = []
    programs.install(said.append, is_root=True)
    assert said == ["installing redis-server, chromium, prometheus with apt-get …"]
    assert (bare / "calls").read_text().splitlines() == [
        "update -qq",
        "install -y -qq --no-install-recommends redis-server chromium prometheus",
    ]
    programs.install(said.append, is_root=True)
    assert len(said) == 1


def test_failed_installation_of_packages_ends_the_suite(bare: Path) -> None:
    _write_program(bare / "apt-get", "#!/bin/sh\nexit 100\n")
    with pytest.raises(SystemExit, match="`apt-get update -qq` failed with exit code 100"):
        programs.install(lambda _: None, is_root=True)


def test_user_without_root_installs_nothing(bare: Path) -> None:
    _write_program(bare / "apt-get", APT_GET.format(folder=bare))
    with pytest.raises(SystemExit, match="missing programs: redis-server"):
        programs.install(lambda _: None, is_root=False)
    assert not (bare / "calls").exists()
