"""The private folder of `slipstream up`: its path is fit for the shell by which Triton starts models."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.errors import CommandError
from slipstream_tools.up.run_folder import is_fit_for_shell, make_run_folder
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

ODD = ("t m p", "it's", "a$b", "a;b", "a&b", "(a)", 'a"b', "a\\b", "a`b", "a*b", "a\tb", "a#b", "{a,b}")
_TRITON_PATH = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=8)


@pytest.mark.parametrize("name", ODD)
def test_odd_folder_for_temporary_files_is_replaced_and_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, other, said = tmp_path / name, tmp_path / "other", list[str]()
    odd.mkdir()
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    folder = make_run_folder("run-", report=said.append, others=(str(tmp_path / "none"), str(other)))
    assert (folder.parent, list(odd.iterdir())) == (other, [])
    assert folder.stat().st_mode & 0o777 == 0o700
    [line] = said
    assert repr(str(odd)) in line
    assert str(other) in line


def test_without_a_fit_folder_the_command_ends_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "t m p"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    with pytest.raises(CommandError, match=r"t m p' has the character ' '.*set TMPDIR to another folder"):
        make_run_folder("run-", report=print, others=(str(tmp_path / "none"), str(odd)))


def test_usual_folder_is_used_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    assert make_run_folder("run-", report=said.append).parent == tmp_path
    assert not said


@given(st.lists(_TRITON_PATH, min_size=1, max_size=3))
def test_path_that_is_fit_reaches_a_program_as_one_word(names: list[str]) -> None:
    path = "/" + "/".join(names)
    if is_fit_for_shell(path):
        command = f"exec {shlex.quote(str(shutil.which('printf')))} %s@ {path}"
        assert subprocess.check_output(["bash", "-c", command], text=False).decode() == f"{path}@"


@pytest.mark.parametrize("odd", ["repository", "run"])
def test_triton_is_not_started_with_an_odd_path(odd: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / (f"{name} 1" if name == odd else name) for name in ("repository", "run")}
    with pytest.raises(CommandError, match=rf"{odd} 1' has the character ' '"):
        TritonServer(
            model_repository=folders["repository"],
            run_dir=folders["run"],
            ports=TritonPorts(grpc=1, http=2, metrics=3),
        )
