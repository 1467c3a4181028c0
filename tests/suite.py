"""`make test`: the whole suite as two runs of pytest beside each other, because most of it waits for servers.

One half is the gateway and the system as a whole, the other the kernels, the engine, the operator and the rest of
`_BESIDE`: each takes about as long as the other. Whatever is in no list goes with the gateway, so a new folder is never
left out. Before both, vLLM and SmolLM2 come into the user's cache folder: the first time takes minutes, which no test
should. Options such as `-k` or `--durations=20` go to both halves; with a path among them, pytest runs as it would by
itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from slipstream_tools.up.smollm2 import smollm2_folder
from slipstream_tools.up.vllm_install import install_vllm

from tests.ports import FIRST_PORT, PORTS_OF_A_RUN, PORTS_VARIABLE

_TESTS = Path(__file__).parent
_BESIDE = (
    "kernels",
    "engine",
    "operator",
    "triton",
    "layout",
    "vllm",
)
_NO_TESTS = 5  # what pytest exits with where it found none


def main(options: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest"]
    if any(not option.startswith("-") and Path(option.partition("::")[0]).exists() for option in options):
        return subprocess.run([*pytest, *options], check=False).returncode
    install_vllm(_say)
    smollm2_folder(_say)
    parts = [str(_TESTS / part) for part in _BESIDE]
    env = {**os.environ, PORTS_VARIABLE: str(FIRST_PORT + PORTS_OF_A_RUN)}
    with tempfile.TemporaryFile() as output:
        beside = subprocess.Popen(
            [*pytest, *parts, "-p", "no:cacheprovider", *options], stdout=output, stderr=subprocess.STDOUT, env=env
        )
        try:
            here = subprocess.run([*pytest, *(f"--ignore={part}" for part in parts), *options], check=False)
            codes = (beside.wait(), here.returncode)
        finally:
            beside.kill()  # where Ctrl-C ended the other half
            beside.wait()
        output.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
    return _code(codes)


def _say(line: str) -> None:
    print(line, flush=True)


def _code(codes: tuple[int, int]) -> int:
    """One exit code: `-k` may leave a half without tests, both halves without any is a failure as in pytest."""
    if set(codes) <= {0, _NO_TESTS}:
        return _NO_TESTS if set(codes) == {_NO_TESTS} else 0
    return next(code for code in codes if code not in (0, _NO_TESTS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
