"""`make test`: the suite on three workers, because most of it waits for servers.

Before the tests, missing programs are installed, and vLLM, SmolLM2 and LiteLLM come into the user's cache folder: the
first time takes minutes, which no test should. Options such as `-k` or `--durations=20` go to pytest; with a path among
them, it runs as it would by itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from slipstream_tools.up.smollm2 import smollm2_folder
from slipstream_tools.up.vllm_install import install_vllm

from tests.support import programs
from tests.support.litellm_proxy import litellm_folder

_WORKERS = 3  # for two processors: a third of the time goes into waits
_OPTIONS = ("-n", str(_WORKERS), "--dist", "loadscope")


def main(options: list[str]) -> int:
    # Dozens of processes of ours are started: each would compile the same modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if any(not option.startswith("-") and Path(option.partition("::")[0]).exists() for option in options):
        if missing := programs.instruction():
            _say(missing)
        return pytest.main(options)
    programs.install(_say)
    install_vllm(_say)
    smollm2_folder(_say)
    litellm_folder()
    return pytest.main([*_OPTIONS, *options])


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
