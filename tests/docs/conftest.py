"""What the tests of documented commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.shell import Shell
from tests.support.doc_blocks import ROOT
from tests.support.kube import KubeApiServer

MODULES = {"slipstream": "slipstream_tools.cli", "helm": "tests.support.helm_command"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Without a cluster. Commands of a checkout run in `ROOT`."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in MODULES.items():
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    return Shell(folder, {**os.environ, "PATH": path, "PYTHONPATH": paths, "HOME": str(tmp_path)})


@pytest.fixture
def cluster_shell(shell: Shell, kube: KubeApiServer, crds: object, namespace: str) -> Shell:
    """`namespace` of the real API server is the default one."""
    shell.environment["KUBECONFIG"] = str(kube.kubeconfig(namespace=namespace))
    return shell
