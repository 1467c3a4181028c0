"""`make` installs a checkout with uv or pip, and recovers from interrupted and broken installations."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.install import parse_pip_config, uv_variables
from tests.support.polling import eventually

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PIN = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("uv=="))
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "checkout"
version = "1"
[project.optional-dependencies]
embedded = ["needed"]
dev = ["needed"]
"""
# Builds the wheel of an editable installation without a package of its own.
BACKEND = """\
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "checkout-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        metadata = "Metadata-Version: 2.1\\nName: checkout\\nVersion: 1\\nProvides-Extra: embedded\\n"
        metadata += "Provides-Extra: dev\\nRequires-Dist: needed; extra == 'embedded' or extra == 'dev'\\n"
        wheel.writestr("checkout-1.dist-info/METADATA", metadata)
        wheel.writestr("checkout-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("checkout-1.dist-info/RECORD", "")
    return name
"""
# Stands before the real uv, which this environment has. It waits as long as the file `hold` exists.
UV = """\
#!/bin/sh
echo "$*" >> "{folder}/uv-calls"
while [ -e "{folder}/hold" ]; do sleep 0.05; done
exec "{uv}" "$@"
"""


class Checkout:
    """A small checkout with the real installation script, whose package sources are wheels in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        self.wheels = folder / "wheels"
        self.uv_calls = folder / "uv-calls"
        self.hold = folder / "hold"
        for name in ("deploy", "wheels"):
            (folder / name).mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "install.py", folder / "deploy")
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "backend.py").write_text(BACKEND)
        (folder / "constraints.txt").write_text(f"{PIN}\nneeded==1\n")
        self.add_wheel("needed==1", {"needed.py": ""})

    def add_uv(self) -> None:
        uv = shutil.which("uv", path=Path(sys.executable).parent)
        assert uv, "this environment was installed without uv: make installs it"
        version = PIN.partition("==")[2]
        self.add_wheel(PIN, {f"uv-{version}.data/scripts/uv": UV.format(folder=self.folder, uv=uv)})

    def add_wheel(self, pin: str, files: Mapping[str, str]) -> None:
        name, version = pin.split("==")
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(self.wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                member = zipfile.ZipInfo(path)
                member.external_attr = 0o100755 << 16  # a regular file, and executable
                wheel.writestr(member, text)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def start(self, extra: str = "run") -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        command = [sys.executable, "deploy/install.py", ".venv", extra]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **pipes)

    def install(self, extra: str = "run") -> str:
        """Its output."""
        with self.start(extra) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def wait_for_uv(self, process: subprocess.Popen[str]) -> None:
        def is_called() -> bool:
            assert process.poll() is None, process.stdout and process.stdout.read()
            return self.uv_calls.exists()

        eventually(is_called, "uv is started")

    def has_needed_package(self) -> bool:
        python = self.venv / "bin" / "python"
        return subprocess.run([python, "-c", "import needed"], check=False, capture_output=True).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def test_uv_installs_from_the_sources_of_pip_once(checkout: Checkout) -> None:
    checkout.add_uv()
    assert "installing .[embedded,bench,kubernetes] with uv …" in checkout.install()
    assert checkout.has_needed_package()
    assert checkout.install() == ""
    assert "installing .[dev] with uv …" in checkout.install("dev")
    assert checkout.install("run") == ""
    assert len(checkout.uv_calls.read_text().splitlines()) == 2


def test_changed_constraints_are_installed_into_the_same_environment(checkout: Checkout) -> None:
    checkout.add_uv()
    checkout.install()
    (checkout.venv / "bin" / "own-program").touch()
    checkout.add_wheel("needed==2", {"needed.py": ""})
    constraints = checkout.folder / "constraints.txt"
    constraints.write_text(constraints.read_text().replace("needed==1", "needed==2"))
    assert "needed==2" in checkout.install()
    assert (checkout.venv / "bin" / "own-program").exists()


def test_pip_installs_where_uv_cannot_be_had(checkout: Checkout) -> None:
    output = checkout.install()
    assert "installing .[embedded,bench,kubernetes] with pip, because uv cannot be installed" in output
    assert "Successfully installed" in output
    assert checkout.has_needed_package()
    assert checkout.install() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_interrupted_installation_starts_anew(checkout: Checkout, number: signal.Signals) -> None:
    checkout.add_uv()
    checkout.hold.touch()
    with checkout.start() as process:
        checkout.wait_for_uv(process)
        process.send_signal(number)
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        process.wait(timeout=60)
        checkout.hold.unlink()  # a uv that outlives the signal ends, too
        output, _ = process.communicate(timeout=60)
    assert ("interrupted: the next `make` builds .venv anew" in output) == (number != signal.SIGKILL)
    assert "creating the virtual environment .venv …" in checkout.install()
    assert checkout.has_needed_package()
    assert checkout.install() == ""


def test_failed_installation_names_the_command_and_starts_anew(checkout: Checkout) -> None:
    checkout.add_uv()
    wheel = checkout.wheels / "needed-1-py3-none-any.whl"
    wheel.rename(checkout.folder / wheel.name)
    with checkout.start() as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the installation into .venv failed: `.venv/bin/uv pip install" in output
    (checkout.folder / wheel.name).rename(wheel)
    checkout.install()
    assert checkout.has_needed_package()


@pytest.mark.parametrize("lost", ["lib", pytest.param("bin/python", marks=pytest.mark.slow)])
def test_broken_environment_is_built_anew(checkout: Checkout, lost: str) -> None:
    checkout.add_uv()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout.venv], check=True)
    path = checkout.venv / lost
    path.unlink() if path.is_symlink() else shutil.rmtree(path)
    assert "creating the virtual environment .venv …" in checkout.install()
    assert checkout.has_needed_package()


def test_lost_python_is_noticed_although_all_is_installed(checkout: Checkout) -> None:
    checkout.add_uv()
    checkout.install()
    for path in (checkout.venv / "bin").glob("python*"):
        path.unlink()
        path.symlink_to("/no/python")
    assert "creating the virtual environment .venv …" in checkout.install()
    assert checkout.has_needed_package()


def test_folder_that_is_no_environment_stays_as_it_is(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "thesis.txt").touch()
    with checkout.start() as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the folder is no virtual environment: move it away" in output
    assert [path.name for path in checkout.venv.iterdir()] == ["thesis.txt"]


def test_second_installation_waits_for_the_first(checkout: Checkout) -> None:
    checkout.add_uv()
    checkout.hold.touch()
    with checkout.start() as first:
        checkout.wait_for_uv(first)
        with checkout.start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting for another installation in this checkout …\n"
            checkout.hold.unlink()
            assert second.communicate(timeout=60)[0] == ""
        first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(checkout.uv_calls.read_text().splitlines()) == 1


def test_pip_s_variables_outrank_its_files() -> None:
    listing = ":env:.index-url='https://a/simple'\nglobal.index-url='https://b/simple'\ninstall.find-links='/x\\n/y'\n"
    assert parse_pip_config(listing) == {"index-url": "https://a/simple", "find-links": "/x\n/y"}


def test_uv_gets_the_sources_of_pip_and_its_choice_among_indexes() -> None:
    pip = {
        "index-url": "https://a",
        "extra-index-url": "https://b https://c",
        "find-links": "/x\n/y",
        "cert": "/ca.pem",
    }
    assert uv_variables(pip, {}) == {
        "UV_DEFAULT_INDEX": "https://a",
        "UV_INDEX": "https://b https://c",
        "UV_FIND_LINKS": "/x,/y",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_sources_of_uv_take_precedence_over_those_of_pip() -> None:
    pip = {"index-url": "https://a", "cert": "/ca.pem"}
    assert uv_variables(pip, {"UV_FIND_LINKS": "/wheels"}) == {"SSL_CERT_FILE": "/ca.pem"}
