"""`make figures`: the size of this tree and the start of its programs, against the release before.

Lines are those of Python, product without the plugin for vLLM. The wheel has the embedded pair's weights; the sizes of
gateway and operator are those of their own packages, unpacked and without dependencies. A start lasts until the gateway
answers, and until the operator is ready; its processor time can be compared on a busy machine, too. Memory is the
resident one at that moment. Starts are medians of three, the trees by turns, with the packages of this environment.
"""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from statistics import median

import psutil

from tests.gateway.pair_manifest import manifest_text
from tests.operator.operator_process import OperatorProcess, grant
from tests.support.earlier_release import RELEASE, ROOT, environment_of, extract
from tests.support.gateway_process import Process
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.ports import dead_url, lasting_ports
from tests.support.wheels import build_wheel

STARTS = 3
STARTED = ("start, s", "start, CPU s", "memory, MB")
PACKAGES = {
    "gateway": ("slipstream_core", "slipstream_gateway", "slipstream_tools"),
    "operator": ("slipstream_core", "slipstream_operator"),
}
PRODUCT = ("gateway", "operator", "kernels")
PLUGIN = "slipstream_vllm"


def lines(tree: Path, *folders: str) -> int:
    files = (path for folder in folders for path in (tree / folder).rglob("*.py") if PLUGIN not in path.parts[:-1])
    return sum(path.read_bytes().count(b"\n") for path in files)


def packages_kb(wheel: Path, names: Collection[str]) -> float:
    with zipfile.ZipFile(wheel) as archive:
        return sum(file.file_size for file in archive.infolist() if file.filename.partition("/")[0] in names) / 1e3


def start_gateway(tree: Path, folder: Path) -> tuple[float, ...]:
    """The values of `STARTED`."""
    (manifest := folder / "pair.yaml").write_text(manifest_text([dead_url()]))
    began_s = time.monotonic()
    gateway = Process(manifest, *lasting_ports(1), environment=environment_of(tree), log=folder / "gateway.log")
    try:
        gateway.wait_live()
        return started(began_s, gateway.child.pid)
    finally:
        gateway.stop()


def start_operator(kube: KubeApiServer, tree: Path, folder: Path) -> tuple[float, ...]:
    """The values of `STARTED`."""
    began_s = time.monotonic()
    with OperatorProcess(kube, "figures", folder, environment=environment_of(tree)) as operator:
        operator.wait_ready()
        return started(began_s, operator.pid)


def started(began_s: float, pid: int) -> tuple[float, ...]:
    took_s, process = time.monotonic() - began_s, psutil.Process(pid)
    times = process.cpu_times()
    return took_s, times.user + times.system, process.memory_info().rss / 2**20


def figures(trees: list[Path], folder: Path) -> dict[str, list[float]]:
    """The figures of each tree by their names."""
    with KubeApiServer(folder / "kube") as kube:
        install_chart(kube, CRDS)
        grant(kube, kube.namespace("figures"))
        starts: dict[str, Callable[[Path], tuple[float, ...]]] = {
            "gateway": lambda tree: start_gateway(tree, folder),
            "operator": lambda tree: start_operator(kube, tree, folder),
        }
        found = {name: [[start(tree) for tree in trees] for _ in range(STARTS)] for name, start in starts.items()}
    wheels = [build_wheel(folder / f"wheel-{number}", tree) for number, tree in enumerate(trees)]
    return {
        "lines of product": [lines(tree, *PRODUCT) for tree in trees],
        "lines of tests": [lines(tree, "tests") for tree in trees],
        "wheel, kB": [wheel.stat().st_size / 1e3 for wheel in wheels],
        **{f"{name}, kB": [packages_kb(wheel, packages) for wheel in wheels] for name, packages in PACKAGES.items()},
        **{
            f"{name}, {unit}": [median(turn[number][part] for turn in turns) for number in range(len(trees))]
            for name, turns in found.items()
            for part, unit in enumerate(STARTED)
        },
    }


def main() -> None:
    # Without compiled files the tree that was just unpacked would start slower than this one, which may have some.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        earlier = extract(folder / "earlier")
        trees = [ROOT] if earlier is None else [ROOT, earlier]
        print(f"{'':24}{'now':>12}{RELEASE if earlier else f'(no commit of {RELEASE})':>12}")
        for title, values in figures(trees, folder).items():
            change = f"{values[0] / values[1]:>11.2f} ×" if earlier else ""
            print(f"{title:24}" + "".join(f"{value:>12,.{0 if value >= 100 else 2}f}" for value in values) + change)


if __name__ == "__main__":
    main()
