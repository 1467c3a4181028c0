"""What the newest release of vLLM changes for the plugin: `python -m tests.support.vllm_hooks`.

The plugin wraps functions of vLLM that are not public. `vllm_hooks.json` has a hash of each in each release that the
plugin's tests passed with. If the newest release is not among these, it is downloaded and its functions are compared
with those of the last tested one. CI prints the result and goes on: a release of others breaks no build here.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMPATIBILITY = ROOT / "kernels" / "slipstream_vllm" / "compatibility.py"
RECORD = Path(__file__).with_suffix(".json")
_TIMEOUT_S = 600.0
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

Hashes = dict[str, str | None]
"""By `module.attribute`; None for a function that a release lacks."""


def tested_versions() -> tuple[str, ...]:
    versions: tuple[str, ...] = _constants()["TESTED_VERSIONS"]
    return versions


def hooks() -> Iterator[tuple[str, str]]:
    """Module and attribute path of each function that the plugin uses."""
    for name, value in _constants().items():
        if name.endswith("_HOOKS"):
            yield from value


def hashes_of(wheel: Path) -> Hashes:
    """The hash of each hook in a wheel; comments, blank lines and line breaks do not count."""
    with zipfile.ZipFile(wheel) as archive:
        return {f"{module}.{path}": _hash(archive, module, path.split(".")) for module, path in hooks()}


def changes(tested: Mapping[str, str | None], newest: Mapping[str, str | None]) -> list[str]:
    """One line for each hook that differs."""
    gone = [f"gone: {name}" for name, value in newest.items() if value is None and tested.get(name) is not None]
    return gone + [
        f"changed: {name}" for name, value in newest.items() if value is not None and value != tested.get(name)
    ]


def _constants() -> dict[str, Any]:
    """The literal constants of the plugin's module, which only vLLM's own environment can import."""
    found = {}
    for node in ast.parse(COMPATIBILITY.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id.isupper():
            found[target.id] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    return found


def _hash(archive: zipfile.ZipFile, module: str, path: list[str]) -> str | None:
    base = module.replace(".", "/")
    names = [name for name in (f"{base}.py", f"{base}/__init__.py") if name in archive.NameToInfo]
    if not names:
        return None
    node: ast.AST | None = ast.parse(archive.read(names[0]))
    for name in path:
        node = next((child for child in getattr(node, "body", ()) if getattr(child, "name", None) == name), None)
    return None if node is None else hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


def _newest() -> str:
    """The newest release that the package index has."""
    command = [*_PIP, "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-", "vllm"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    report = json.loads(done.stdout)
    version: str = report["install"][0]["metadata"]["version"]
    return version


def _download(version: str, folder: Path) -> Path:
    command = [*_PIP, "download", "--quiet", "--no-deps", "-d", str(folder), f"vllm=={version}"]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    return next(folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--record", metavar="WHEEL", type=Path, nargs="+", help="record the hooks of tested releases")
    options = parser.parse_args()
    if options.record:
        recorded = {wheel.name.split("-")[1]: hashes_of(wheel) for wheel in options.record}
        RECORD.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n", encoding="utf-8")
        return
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    last = tested_versions()[-1]
    try:
        newest = _newest()
        if newest in recorded:
            print(f"vLLM {newest}, the newest release, is tested")
            return
        with tempfile.TemporaryDirectory() as folder:
            found = changes(recorded[last], hashes_of(_download(newest, Path(folder))))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        print(f"the newest release of vLLM is not known: {exc}")
        return
    print(f"vLLM {newest} is not tested; of {len(recorded[last])} functions that the plugin uses, against {last}:")
    print("\n".join(f"  {line}" for line in found) or "  none differs")


if __name__ == "__main__":
    main()
