"""The wheels: their files, and each extra alone in a clean environment, on each Python, with the newest and the oldest
dependencies that `pyproject.toml` allows.

The extras `docs` and `dev` are of a checkout; `gpu` is resolved only, because its packages have gigabytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from slipstream_tools.cli import parsers
from slipstream_tools.up.vllm_install import install_vllm

from tests.e2e.conftest import RunningUp
from tests.e2e.pasted import run_pasted
from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import chat, manifest_text
from tests.operator.operator_process import OperatorProcess, grant
from tests.support.doc_blocks import find
from tests.support.gateway_process import Process, wait_live
from tests.support.kube import KubeApiServer
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer
from tests.support.wheels import ROOT, Environment, build_wheel, find_python

pytestmark = pytest.mark.timeout(1200)

_PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = _PYPROJECT["project"]
BUILT = _PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
PLACES = {f"{folder}/": f"{folder.rpartition('/')[2]}/" for folder in BUILT["packages"]} | {
    f"{folder}/": f"{place}/" for folder, place in BUILT["force-include"].items()
}
"""The folders of the wheel by those of this tree."""
MAX_WHEEL_BYTES = 17_000_000  # 15.8 MB when this was written; three checkpoints are 15.5 of them
ADDRESS = "http://127.0.0.1:8080"
IMPORT_ALL = """
import importlib, pkgutil, sys
*packages, lacks = sys.argv[1:]
def modules():
    for name in packages:
        yield name
        yield from (found.name for found in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."))
for name in modules():
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in lacks.split(","):
            raise
"""


class Extra(NamedTuple):
    """An extra of the wheel. All modules of `packages` are imported; those that need a package of `lacks`, which
    belongs to another extra, may fail."""

    extras: str
    packages: tuple[str, ...]
    lacks: tuple[str, ...] = ()


EXTRAS = {
    "none": Extra("", ("slipstream_core.manifest",)),
    "gateway": Extra(
        "gateway",
        ("slipstream_core", "slipstream_gateway", "slipstream_tools.gateway", "slipstream_tools.keys"),
        ("kubernetes", "redis", "pyarrow", "kingfisher_sdk", "litellm"),
    ),
    "litellm": Extra("litellm", ("slipstream_gateway.litellm_proxy",), ("litellm",)),
    "drafts": Extra("drafts", ("slipstream_gateway.capture", "slipstream_tools.drafts")),
    "redis": Extra("redis", ("slipstream_core.redis",)),
    "kubernetes": Extra("kubernetes", ("slipstream_core.kube", "slipstream_tools.kill")),
    "operator": Extra("operator", ("slipstream_operator",)),
    "engine": Extra(
        "engine,cpu",
        ("slipstream_engine", "slipstream_kernels", "slipstream_training"),
        ("triton", "triton_python_backend_utils", "vllm", "gguf"),
    ),
    "bench": Extra("bench", ("slipstream_tools.bench",)),
    "train": Extra("train", ("slipstream_tools.train",)),
    "embedded": Extra("embedded", ("slipstream_tools.up",)),
}
PYTORCH = ("engine", "embedded")
"""Those of `EXTRAS` that bring PyTorch: not every package source has its build for CPUs for each Python."""
PYTHONS = ("3.11", "3.12")
AGES = ("newest", "oldest")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel of this tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_has_our_packages_and_nothing_beside(wheel: Path, wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {place.split("/")[0] for place in PLACES.values()}
    assert not any("__pycache__" in name or "/tests/" in name for name in wheel_names)
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


def test_wheel_carries_every_file_of_its_packages_but_the_training_of_the_pair(wheel_names: list[str]) -> None:
    """And the model repository, and the plugin's folder for vLLM."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    expected = {
        place + path.removeprefix(folder)
        for path in listed
        for folder, place in PLACES.items()
        if path.startswith(folder)
    }
    left_out = {name for name in expected if name.startswith("slipstream_training/embedded/")}
    assert left_out
    assert {name for name in wheel_names if ".dist-info/" not in name} == expected - left_out


@pytest.mark.slow  # vLLM's import alone takes many seconds
def test_the_plugin_s_wheel_has_the_plugin_and_loads_beside_vllm(tmp_path: Path) -> None:
    """vLLM's environment has the plugin already, so the wheel's files come first on its path."""
    built = build_wheel(tmp_path / "built", ROOT / "kernels" / "slipstream_vllm")
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "files")
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"slipstream_vllm"}
    assert sum(name.endswith("/entry_points.txt") for name in names) == 1
    vllm = install_vllm(print)
    code = "import slipstream_vllm.scheduler; print(slipstream_vllm.__file__, slipstream_vllm.__version__)"
    environment = {"PYTHONPATH": str(tmp_path / "files"), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    done = subprocess.run(
        [str(vllm.python), "-c", code], env=environment, cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == [str(tmp_path / "files" / "slipstream_vllm" / "__init__.py"), PROJECT["version"]]


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs that tests start find no source tree, on the path of modules or around the working directory."""
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def install(wheel: Path, tmp_path: Path) -> Callable[..., Environment]:
    """An environment with the wheel and some extras, in a Python of a version. `age`: of the dependencies."""

    def installed(extras: str, version: str = PYTHONS[0], age: str = AGES[0]) -> Environment:
        this = ".".join(map(str, sys.version_info[:2]))
        python = sys.executable if version == this else find_python(version)
        if python is None:
            pytest.skip(f"no Python {version} here, and uv cannot install one, as it can in GitHub's workflow")
        environment = Environment(tmp_path / "environment", python)
        if extras in {EXTRAS[name].extras for name in PYTORCH} and not environment.resolves("torch"):
            pytest.skip(f"the package sources have no PyTorch for CPUs and Python {version}")
        if age == "oldest":
            options = [part for extra in filter(None, extras.split(",")) for part in ("--extra", extra)]
            environment.install("--resolution", "lowest-direct", "-r", str(ROOT / "pyproject.toml"), *options)
            environment.install("--no-deps", str(wheel))
        else:
            environment.install(f"{wheel}[{extras}]")
        return environment

    return installed


def test_every_extra_is_tried() -> None:
    tried = {part for extra in EXTRAS.values() for part in extra.extras.split(",") if part}
    assert set(PROJECT["optional-dependencies"]) - tried == {"docs", "dev", "gpu"}


@pytest.mark.slow  # installs 40 environments
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize(
    ("name", "version"),
    [(name, version) for name in EXTRAS for version in PYTHONS if version == PYTHONS[0] or name not in PYTORCH],
)
def test_an_extra_alone_has_what_its_modules_import(
    name: str, version: str, age: str, install: Callable[..., Environment]
) -> None:
    check(name, install(EXTRAS[name].extras, version, age))


@pytest.mark.slow
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("name", PYTORCH)
def test_an_extra_with_pytorch_works_on_the_newest_python(
    name: str, age: str, install: Callable[..., Environment]
) -> None:
    check(name, install(EXTRAS[name].extras, PYTHONS[-1], age))


def check(name: str, environment: Environment) -> None:
    """The modules of an extra can be imported, and its commands do something."""
    extra = EXTRAS[name]
    done = environment.run("python", "-c", IMPORT_ALL, *extra.packages, ",".join(extra.lacks))
    assert done.returncode == 0, done.stderr
    assert environment.slipstream("--version") == f"slipstream {PROJECT['version']}\n"
    RUNS.get(name, _does_nothing)(environment)


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_the_oldest_packages_for_a_gpu_fit_together(version: str, tmp_path: Path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    environment = Environment(tmp_path / "environment", python)
    wanted = PROJECT["optional-dependencies"]["gpu"]
    lowest = [wanted[0].replace(">=", "=="), *wanted[1:]]
    assert wanted[0].startswith("torch>=")
    assert environment.resolves(*lowest, is_cpu=False)


def _does_nothing(environment: Environment) -> None:
    pass


def _help_works(environment: Environment) -> None:
    for command in parsers():
        assert environment.slipstream(command, "--help").startswith(f"usage: slipstream {command}")
    done = environment.run("slipstream", "gateway", "-f", "pair.yaml")
    assert (done.returncode, "[gateway]" in done.stderr) == (1, True), done.stderr


def serves(environment: Environment) -> None:
    """A gateway answers, and shares its outcomes through Redis once that extra is there, too."""
    environment.install("redis[hiredis]>=5")
    with ExitStack() as stack:
        upstream = stack.enter_context(OpenAiServer())
        manifest = environment.folder / "pair.yaml"
        manifest.write_text(manifest_text([upstream.url]))
        redis_port, port = lasting_ports(2)
        redis = RedisServer(environment.folder, redis_port)
        stack.callback(redis.stop)
        program = (str(environment.bin / "slipstream"),)
        options = ("--allow-anonymous", "--redis", redis.url)
        process = Process(manifest, port, *options, program=program, log=environment.folder / "gateway.log")
        stack.callback(process.stop)
        process.wait_live("/health/ready")
        answer = httpx.post(f"{process.url}/v1/chat/completions", json=chat("tokens=3"))
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].split() == ["word"] * 3
        assert "slipstream_requests_total" in httpx.get(f"{process.url}/metrics").text


def _trains_a_classifier(environment: Environment) -> None:
    rows = [
        {"source": "desk", "task": task, "messages": [{"role": "user", "content": f"{task} number {index}"}]}
        for index in range(20)
        for task in ("open_chat", "summarization")
    ]
    (environment.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment.slipstream("train", "rows.jsonl", "--out", "model.npz")
    assert (environment.folder / "model.npz").stat().st_size > 0


def _lists_captures(environment: Environment) -> None:
    (environment.folder / "captures").mkdir()
    done = environment.run("slipstream", "drafts", "list", "--store", "captures")
    assert done.stderr == "slipstream: error: captures has no captured answers.\n"


def _engine_answers(environment: Environment) -> None:
    [port] = lasting_ports(1)
    command = [environment.python, "-m", "slipstream_engine.openai", "--port", str(port)]
    with (environment.folder / "engine.log").open("w") as log:
        engine = subprocess.Popen(command, cwd=environment.folder, env=environment.environment, stdout=log, stderr=log)
    try:
        wait_live(engine, f"http://127.0.0.1:{port}/v1/models", log=environment.folder / "engine.log")
        body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
        [model] = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()["data"]
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={**body, "model": model["id"]}, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] > 0, answer.text
    finally:
        engine.terminate()
        engine.wait(60)


RUNS: dict[str, Callable[[Environment], None]] = {
    "none": _help_works,
    "gateway": serves,
    "train": _trains_a_classifier,
    "drafts": _lists_captures,
    "engine": _engine_answers,
}


@pytest.mark.slow
@pytest.mark.parametrize("age", AGES)
def test_operator_and_kill_of_a_wheel_work_with_a_cluster(
    age: str, install: Callable[..., Environment], kube: KubeApiServer, crds: None, namespace: str, tmp_path: Path
) -> None:
    environment = install("operator", age=age)
    grant(kube, namespace)
    with OperatorProcess(kube, namespace, tmp_path, python=environment.python) as operator:
        operator.wait_ready()
    kubeconfig = str(kube.kubeconfig(namespace=namespace))
    done = environment.run("slipstream", "kill", "mp/none", "--kubeconfig", kubeconfig)
    assert (done.returncode, "none" in done.stderr) == (1, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("age", AGES)
def test_up_of_a_wheel_answers_the_requests_of_the_readme(
    age: str, install: Callable[..., Environment], start_up: Callable[..., RunningUp]
) -> None:
    environment = install("embedded,bench", age=age)
    up = start_up(script=str(environment.bin / "slipstream"))
    headers, body = run_pasted(find("README.md", "curl -i").commands[0].replace(ADDRESS, up.url))
    assert headers["x-slipstream-class"] == "short_qa/short"
    assert json.loads(body)["usage"]["completion_tokens"] == 18
    _, shown = run_pasted(find("README.md", "curl -si").commands[0].replace(ADDRESS, up.url))
    assert '"completion_tokens":165' in shown
    options = ("--requests", "embedded:6", "--modes", "plain", "--warmup", "0", "--out", "out")
    environment.slipstream("bench", "--url", up.url, *options)
    assert (environment.folder / "out" / "report.html").is_file()
    assert up.stop() == 0
    assert up.left_behind() == []
