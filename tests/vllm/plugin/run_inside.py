"""Runs the files of `inside/` or `inside_v2/` with vLLM's own Python, as this project's environment has no vLLM."""

from __future__ import annotations

import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from slipstream_engine.embedded import TARGET_DIR
from slipstream_tools.up.vllm_environment import VllmInstall

INSIDE = Path(__file__).with_name("inside")
INSIDE_V2 = Path(__file__).with_name("inside_v2")
PYTEST = "pytest==9.2.0"


class Report(NamedTuple):
    """What pytest said inside vLLM's environment. `results` are the outcomes of each file's tests by its name."""

    output: str
    results: dict[str, Counter[str]]


def run_inside(
    install: VllmInstall,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    deselect: Sequence[str] = (),
    files: Path = INSIDE,
    expression: str = "",
) -> Report:
    """All of `files`, a folder or one file of it, in one process, in `folder`: vLLM would take a folder `triton` here
    for the package. `environment` is added to that of `install`, which must have `PYTEST`. The tests `deselect` do not
    run, and of the others those that pytest's `-k` finds by `expression`."""
    environment = dict(environment or {})
    root = str(files if files.is_dir() else files.parent)
    paths = os.pathsep.join(filter(None, (root, environment.pop("PYTHONPATH", None))))
    variables = {
        **install.environment(),
        "PYTHONPATH": paths,
        "SLIPSTREAM_TARGET": str(TARGET_DIR),
        "VLLM_LOGGING_LEVEL": "ERROR",
        **environment,
    }
    command = [
        *(str(install.python), "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-q"),
        *("--rootdir", root, "--confcutdir", root, "-o", "python_files=check_*.py"),
        *("--junit-xml", str(folder / "results.xml"), "-k", expression, str(files)),
        *(f"--deselect={test}" for test in deselect),
    ]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return Report(done.stdout + done.stderr, _results(folder / "results.xml"))


def _results(file: Path) -> dict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    if file.is_file():
        for case in ElementTree.parse(file).iter("testcase"):
            [outcome] = {child.tag for child in case} - {"system-out", "system-err", "properties"} or {"passed"}
            found[f"{case.attrib['classname'].partition('.')[0]}.py"][outcome] += 1
    return dict(found)
