"""Memory of large blocks, in processes of their own: what one has set stays set."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

# A block as large as a body comes and goes; then smaller ones, above which something lives on when they go.
PROGRAM = """
import os, sys
from slipstream_gateway.server.process import give_large_blocks_back

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "set":
    give_large_blocks_back()
before = resident_bytes()
body = b"x" * 8_000_000
del body
parts = [b"y" * 1_000_000 for _ in range(16)]
lives_on = b"z" * 100_000
del parts
print(resident_bytes() - before)
"""


def grown_bytes(how: str, **env: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    return int(done.stdout)


def test_freed_bodies_leave_a_process_no_larger() -> None:
    assert grown_bytes("set") < 2_000_000
    assert grown_bytes("as it comes") > 8_000_000  # or the first line proves nothing


def test_who_chose_by_the_environment_keeps_the_choice() -> None:
    assert grown_bytes("set", MALLOC_MMAP_THRESHOLD_=str(32 * 1024 * 1024)) > 8_000_000
