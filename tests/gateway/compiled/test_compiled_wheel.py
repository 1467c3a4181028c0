"""The wheel with compiled code: what is in it, and the tests of `decide/` on it. They run on the pure sources as well.

These tests need a C compiler. `make up` and the gateway need none.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.classify.hashing import BYTE_VALUES, IN_WORD, TABLE_ROWS, encode, features

import hatch_build
from tests.e2e.test_wheels import serves
from tests.support.wheels import ROOT, Environment, build_wheel

pytestmark = [
    pytest.mark.slow,  # compiles for more than a minute
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("cc") is None, reason="needs a C compiler"),
]
SUITES = ("tests/gateway/classify", "tests/gateway/learning", "tests/gateway/routing")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"), is_compiled=True)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def compiled(installed: Path) -> ModuleType:
    [path] = (installed / hatch_build.ROW_SUM.parent).glob("_row_sum*.so")
    spec = importlib.util.spec_from_file_location("_row_sum", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(code: list[str], installed: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *code], check=False, env=environment, cwd=ROOT, capture_output=True, text=True
    )


def test_every_module_that_may_be_compiled_is_and_says_its_platform(wheel: Path, installed: Path) -> None:
    assert wheel.stem.endswith("linux_" + os.uname().machine)
    names = [Path(module).with_suffix("") for module in hatch_build.modules(ROOT / "gateway")]
    assert len(names) > 25
    for name in names:
        assert list(installed.glob(f"{name}.cpython-*.so")), name
    assert list(installed.glob(f"{hatch_build.ROW_SUM.with_suffix('')}*.so"))


def test_the_compiled_modules_are_loaded_without_what_compiled_them(installed: Path) -> None:
    code = """if True:
        import sys
        for name in ("librt", "mypy", "mypyc", "mypy_extensions", "setuptools"):
            sys.modules[name] = None
        import slipstream_gateway.app, slipstream_gateway.decide.estimate.learner
        from slipstream_gateway.decide.classify import linear
        print(sys.modules["slipstream_gateway.decide.estimate.learner"].__file__, linear._row_sum)"""
    done = run(["-c", code], installed)
    assert done.returncode == 0, done.stderr
    learner, row_sum = done.stdout.split(maxsplit=1)
    assert learner.startswith(str(installed))
    assert learner.endswith(".so")
    assert "built-in function row_sum" in row_sum


def test_it_serves_from_a_clean_environment(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    environment = Environment(tmp_path / "environment")
    environment.install(f"{wheel}[gateway]")
    code = "from slipstream_gateway.decide.estimate import learner; print(learner.__file__)"
    assert environment.run("python", "-c", code).stdout.endswith(".so\n")
    serves(environment)


def test_the_tests_of_decisions_pass_on_compiled_code(installed: Path) -> None:
    done = run(["-m", "pytest", *SUITES, "-q", "-n", "0", "-p", "no:cacheprovider"], installed)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


CLASSIFIER = LinearClassifier(default_model())
SEEN = np.zeros(TABLE_ROWS, np.uint32)
STAMPS = iter(range(1, 2**32))


@settings(max_examples=300)
@given(st.text(max_size=900) | st.text(alphabet="abc XYZ'#+-019\n.é天气กข한ひ，", max_size=900))
def test_the_compiled_sum_is_that_of_numpy(compiled: ModuleType, text: str) -> None:
    data, total = encode(text), np.empty(16, np.float32)
    table = CLASSIFIER._table
    count = compiled.row_sum(data, BYTE_VALUES, IN_WORD, table, SEEN, next(STAMPS), total)
    rows = np.unique(features(data).rows)
    assert count == rows.size
    np.testing.assert_allclose(total, table[rows].sum(axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (1, np.zeros(255, np.uint32), "values has 1020 bytes, not 1024"),
        (2, b"", "in_word has 0 bytes, not 256"),
        (3, np.zeros((4, 16), np.float32), "table has 256 bytes, not 10485760"),
        (4, np.zeros(3, np.uint32), "seen has 12 bytes, not 655360"),
        (6, np.zeros(15, np.float32), "total has 60 bytes, not 64"),
    ],
)
def test_other_sizes_are_refused(compiled: ModuleType, place: int, value: object, error: str) -> None:
    arguments = [b"\nx\n", BYTE_VALUES, IN_WORD, CLASSIFIER._table, SEEN, 0, np.empty(16, np.float32)]
    arguments[place] = value
    with pytest.raises(ValueError, match=error):
        compiled.row_sum(*arguments)


def test_wrong_arguments_are_refused(compiled: ModuleType) -> None:
    with pytest.raises(TypeError, match="7 arguments, got 1"):
        compiled.row_sum(b"")
    with pytest.raises(TypeError):
        compiled.row_sum("text", BYTE_VALUES, IN_WORD, CLASSIFIER._table, SEEN, 0, np.empty(16, np.float32))
    with pytest.raises(BufferError):
        compiled.row_sum(b"", BYTE_VALUES, IN_WORD, CLASSIFIER._table, SEEN, 0, bytes(64))
