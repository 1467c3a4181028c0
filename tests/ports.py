"""Ports for the servers that tests start: free, not handed out twice, and not taken by others meanwhile."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from itertools import islice

PORTS_VARIABLE = "SLIPSTREAM_TEST_PORTS"  # The first port of a run: runs beside each other have each their own.
PORTS_OF_A_RUN = 6_000
FIRST_PORT = 20_000

_HOST = "127.0.0.1"
_FIRST = int(os.environ.get(PORTS_VARIABLE, FIRST_PORT))
# Each comes once in a process, in an order of its own: somebody else may run tests on this machine as well.
_UNTRIED = iter(random.SystemRandom().sample(range(_FIRST, _FIRST + PORTS_OF_A_RUN), PORTS_OF_A_RUN))


def lasting_ports(count: int) -> list[int]:
    """Free ports, never the same twice in a process, that no outgoing connection takes before their server has come up
    or while it is down: they lie below the range that the kernel gives out."""
    ports = list(islice(filter(_is_free, _UNTRIED), count))
    assert len(ports) == count, f"all ports from {_FIRST} on were handed out"
    return ports


def dead_url() -> str:
    """An address where nobody listens."""
    return f"http://{_HOST}:{lasting_ports(1)[0]}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((_HOST, port))
        return True
    return False
