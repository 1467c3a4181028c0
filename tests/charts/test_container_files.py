"""The container files build what they say: everything is there, pinned, and runs as nobody in particular."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from slipstream_operator.children.pod import USER as SERVERS_USER

from tests.support.command import SLIPSTREAM, run_slipstream
from tests.support.manifests import JSON

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
FILES = sorted(FOLDER.glob("*.Dockerfile"))
OF_PYTHON = ("gateway", "operator")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = {
    canonicalize_name(line.partition("==")[0])
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line
}


class Step(NamedTuple):
    """One instruction of a container file."""

    name: str
    value: str


def stages(path: Path) -> list[list[Step]]:
    """The instructions by stage, continued lines joined; what stands before the first FROM belongs to all."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    found: list[list[Step]] = [[]]
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        name, _, value = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append(Step(name, value.strip()))
    return found


def steps(path: Path, name: str) -> list[str]:
    return [step.value for stage in stages(path) for step in stage if step.name == name]


def last(path: Path, name: str) -> str:
    return [step.value for step in stages(path)[-1] if step.name == name][-1]


def by_name(name: str) -> Path:
    return FOLDER / f"{name}.Dockerfile"


all_files = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_is_one_for_each_part() -> None:
    assert [path.stem for path in FILES] == ["gateway", "operator", "triton", "vllm"]


@all_files
def test_bases_are_exact_versions(path: Path) -> None:
    defaults = dict(value.split("=", 1) for value in steps(path, "ARG") if "=" in value)
    stage_names = {name for value in steps(path, "FROM") for name in value.split(" AS ")[1:]}
    for value in steps(path, "FROM"):
        if value.split(" AS ")[0] in stage_names:
            continue
        image = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], value.split(" AS ")[0])
        repository, _, tag = image.partition(":")
        assert re.match(r"v?\d+\.\d+", tag), image
        assert "." not in repository.split("/")[0], f"{image} names a registry"


@all_files
def test_what_is_copied_is_there_and_gets_to_the_builder(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [value.split() for value in steps(path, "COPY")]
    assert copied
    for *sources, _ in copied:
        if sources[0].startswith("--from="):
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not any(fnmatch.fnmatch(source, pattern.removeprefix("**/")) for pattern in ignored), source


@all_files
def test_later_stages_take_only_what_earlier_ones_made(path: Path) -> None:
    *earlier, final = stages(path)
    made = " ".join(step.value for stage in earlier for step in stage)
    for step in final:
        if step.name == "COPY" and step.value.startswith("--from="):
            stage, source = re.match(r"--from=(\w+) (\S+)", step.value).groups()  # type: ignore[union-attr]
            assert f"AS {stage}" in made
            assert source in made


@all_files
def test_image_runs_as_a_number_that_is_not_root(path: Path) -> None:
    final = stages(path)[-1]
    assert int(last(path, "USER").partition(":")[0]) > 0
    after = final[[step.name for step in final].index("USER") :]
    assert not {step.name for step in after} & {"RUN", "COPY", "ADD"}


@all_files
def test_image_says_whether_it_is_well(path: Path) -> None:
    command = last(path, "HEALTHCHECK").partition("CMD")[2]
    program, *arguments = json.loads(command)
    if program == "python":
        compile(arguments[-1], "health check", "exec")
    assert re.search(r"http://127\.0\.0\.1:(\d+)/", command)[1] in last(path, "EXPOSE").split()  # type: ignore[index]


@all_files
def test_every_install_is_pinned_and_asks_for_extras_that_exist(path: Path) -> None:
    installs = [value for value in steps(path, "RUN") if "pip install" in value]
    assert installs
    extras = set(PROJECT["optional-dependencies"])
    for value in installs:
        for install in re.findall(r"pip install.*?(?=&&|$)", value):
            assert " -c constraints.txt " in install or " --require-hashes " in install
            assert "--no-cache-dir" in install
            asked = re.search(r"\.whl\)\[([a-z,-]+)\]", install)
            assert asked is None or set(asked[1].split(",")) <= extras


def needed(name: str, extras: set[str], seen: dict[str, set[str]]) -> None:
    """Everything that installing `name` with `extras` installs, as this environment's own metadata has it."""
    if name in seen and extras <= seen[name]:
        return
    seen.setdefault(name, set()).update(extras)
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        )
        if wanted:
            needed(canonicalize_name(requirement.name), set(requirement.extras), seen)


@pytest.mark.parametrize("name", OF_PYTHON)
def test_all_that_an_image_installs_is_pinned(name: str) -> None:
    [asked] = re.findall(r"\.whl\)\[([a-z,-]+)\]", by_name(name).read_text())
    seen: dict[str, set[str]] = {}
    needed("slipstream-serving", set(asked.split(",")), seen)
    assert seen.keys() - {"slipstream-serving"} <= CONSTRAINTS
    assert "torch" not in seen
    locked = dict(
        re.findall(r"^([\w.-]+)==(\S+) \\$", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE)
    )
    assert seen.keys() - {"slipstream-serving"} <= {canonicalize_name(package) for package in locked}
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    for package, version in locked.items():
        found = [pin for pin in pinned if canonicalize_name(pin.partition("==")[0]) == canonicalize_name(package)]
        assert found == [] or found[0].partition("==")[2] == version, "make lock"


@pytest.mark.parametrize("name", OF_PYTHON)
def test_every_file_that_an_image_installs_has_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[\w.-]+==\S+.* --hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.parametrize("name", OF_PYTHON)
def test_image_starts_a_command_that_exists(name: str) -> None:
    program, command, *_ = json.loads(last(by_name(name), "ENTRYPOINT"))
    assert (program, command) == ("slipstream", name)
    done = run_slipstream(command, "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", OF_PYTHON)
def test_image_and_chart_agree_on_user_and_ports(
    name: str, render: Callable[..., list[JSON]], only: Callable[..., JSON]
) -> None:
    pod = only(render(), "Deployment", f"-{name}")["spec"]["template"]["spec"]
    user, group = (int(number) for number in last(by_name(name), "USER").split(":"))
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (user, group)
    [container] = pod["containers"]
    ports = {str(port["containerPort"]) for port in container["ports"]}
    assert ports == set(last(by_name(name), "EXPOSE").split())
    assert container["image"] == f"slipstream-{name}:{PROJECT['version']}"


def test_triton_image_and_operator_agree_on_the_user() -> None:
    assert last(by_name("triton"), "USER") == f"{SERVERS_USER}:{SERVERS_USER}"


def test_versions_of_charts_and_project_are_one() -> None:
    for name in ("slipstream", "slipstream-crds"):
        chart = yaml.safe_load((ROOT / "charts" / name / "Chart.yaml").read_text())
        assert str(chart["appVersion"]) == PROJECT["version"]


def test_compose_file_builds_files_that_exist_and_serves_a_manifest_that_compiles() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for service in services.values():
        build = service["build"]
        assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
        assert service["read_only"] is True
    run = [*SLIPSTREAM, "route", "-f", str(FOLDER / "pair.yaml"), "-"]
    request = json.dumps({"model": "slipstream-embedded", "messages": [{"role": "user", "content": "Hi"}]})
    done = subprocess.run(run, input=request, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
