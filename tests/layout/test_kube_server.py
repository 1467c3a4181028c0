"""The programs of the API server that tests talk to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.kube import KubeError, find_assets
from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.integration


def test_missing_programs_name_the_script_that_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(KubeError, match=r"no etcd and no kube-apiserver in .*\.ci/build-apiserver"):
        find_assets()


def test_script_prints_the_folder_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[2] / ".ci" / "build-apiserver"
    done = subprocess.run(
        [str(script), str(find_assets())], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert Path(done.stdout.splitlines()[-1]) == find_assets()
