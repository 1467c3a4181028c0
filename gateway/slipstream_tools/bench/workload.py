"""The shipped workload: made by the embedded pair's own package, which the gateway never imports, in a process."""

from __future__ import annotations

import subprocess
import sys

from slipstream_core.errors import CommandError

from slipstream_tools.bench.requests import BenchFile, parse_requests

EMBEDDED = "embedded"
_TIMEOUT_S = 120.0
_MAX_REQUESTS = 100_000


def is_embedded(text: str) -> bool:
    """Whether `--requests` names the shipped workload and not a file."""
    return text.partition(":")[0] == EMBEDDED


def embedded_requests(text: str) -> BenchFile:
    """The requests of `embedded:COUNT` or `embedded:COUNT:SEED`. Raises `CommandError`."""
    count, seed = _numbers(text)
    command = [
        *(sys.executable, "-m", "slipstream_engine.embedded.mixed"),
        *("--requests", str(count), "--seed", str(seed)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"the shipped workload took longer than {_TIMEOUT_S:g} s to make") from error
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise CommandError(f"the shipped workload cannot be made: {reason}")
    return parse_requests(done.stdout.splitlines(keepends=True), source=f"{EMBEDDED}:{count}:{seed}")


def _numbers(text: str) -> tuple[int, int]:
    parts = text.split(":")[1:]
    plain = all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    if len(parts) in (1, 2) and plain and 1 <= int(parts[0]) <= _MAX_REQUESTS:
        return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0
    raise CommandError(
        f"--requests: the shipped workload is embedded:COUNT or embedded:COUNT:SEED with a count of 1 to "
        f"{_MAX_REQUESTS}, got {text!r}",
        exit_code=2,
    )
