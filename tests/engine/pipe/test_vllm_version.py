"""A vLLM that is not there, or a release that was not tested, ends the model's load with one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
from slipstream_engine.errors import CheckpointError
from slipstream_engine.pipe.host import Host
from slipstream_engine.vllm_engine.hosted import application
try:
    Host(application("embedded", {"vllm_args": "--dtype auto"})).start()
except CheckpointError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "sentence"),
    [
        ("__version__ = '0.99.1+cpu'", "Slipstream was tested with vLLM 0.32.0, not with 0.99.1: install 0.32.0"),
        ("import nothing_of_the_kind", "vLLM 0.32.0 is not installed in the environment of Triton's stub: No module"),
    ],
)
def test_another_vllm_is_refused_before_its_modules_are_imported(tmp_path: Path, package: str, sentence: str) -> None:
    """vLLM itself is too large to install a release for this: a package of its name stands in."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(package, encoding="utf-8")
    env = {"PYTHONPATH": str(tmp_path), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run([sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(sentence)
    assert done.stdout.count("\n") == 1
