"""`make audit`: known vulnerabilities of the pinned packages, by pip-audit. It fails for a vulnerable package. If no
service is reachable, it prints so and does not fail, because that says nothing about the packages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
PINS = _ROOT / "constraints.txt", _ROOT / "gateway" / "slipstream_tools" / "up" / "vllm-requirements.txt"
TIMEOUT_S = 300.0
_SHOWN_CHARS = 200


def main() -> int:
    """The exit code: 1 if a pinned version is known to be vulnerable."""
    return max([_checked(file) for file in PINS])  # not any(), because each file is audited


def _checked(pins: Path) -> int:
    lines = [line for line in pins.read_text(encoding="utf-8").splitlines() if "==" in line]
    probe, why = _audited(lines[:1])  # a single query shows whether a service is reachable
    if probe:
        found, why = _audited(lines)
        if found:
            return _judged(pins.name, found, len(lines))
    print(f"{pins.name}: NOT CHECKED for known vulnerabilities: no service is reachable ({why})", file=sys.stderr)
    return 0


def _audited(pins: list[str]) -> tuple[list[dict[str, Any]], str]:
    """The packages that the service knows, or the reason for having none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--requirement", file.name, "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [], f"no response within {TIMEOUT_S:g} s"
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], (done.stderr.strip().splitlines() or ["no output"])[-1][:_SHOWN_CHARS]
    known = [package for package in packages if "skip_reason" not in package]
    return known, packages[0].get("skip_reason", "") if packages else "no packages to check"


def _judged(file: str, packages: list[dict[str, Any]], pinned: int) -> int:
    vulnerable = [package for package in packages if package["vulns"]]
    for package in vulnerable:
        names = ", ".join(
            f"{vuln['id']} (fixed in {', '.join(vuln['fix_versions']) or '-'})" for vuln in package["vulns"]
        )
        print(f"{package['name']} {package['version']}: {names}", file=sys.stderr)
    print(f"{file}: {len(vulnerable)} of {len(packages)} packages are known to be vulnerable; {pinned} are pinned")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
