"""Commands that `slipstream up` prints, run as a user pastes them."""

from __future__ import annotations

import subprocess

DRAWN = ("hold_back", "exploration")
"""The reasons of requests that were drawn for a comparison."""


def run_pasted(command: str) -> tuple[dict[str, str], str]:
    """Headers (lower-case names; none without `curl -i`) and body. A request that was drawn for a comparison is sent
    again, as `slipstream up` says."""
    while (answer := _run(command))[0].get("x-slipstream-reason") in DRAWN:
        pass
    return answer


def _run(command: str) -> tuple[dict[str, str], str]:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, check=True)
    head, separator, body = done.stdout.replace("\r\n", "\n").partition("\n\n")
    if not separator or not head.startswith("HTTP/"):
        return {}, done.stdout
    pairs = (line.partition(":") for line in head.splitlines()[1:])
    return {name.lower(): value.strip() for name, _, value in pairs}, body
