"""Ports for the servers that tests start: free, not handed out twice, and not taken by others meanwhile."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from itertools import islice

_FIRST_OF_A_RUN = int(os.environ.get("SLIPSTREAM_TEST_PORTS", "20000"))
_FIRST_OF_OTHERS = 32_768  # Linux gives outgoing connections ports from here on
_PORTS_OF_A_RUN = min(12_000, _FIRST_OF_OTHERS - _FIRST_OF_A_RUN)
_HOST = "127.0.0.1"


def _ports_of_this_worker() -> range:
    """pytest-xdist's workers share the ports of a run: none has a port of another's."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = _PORTS_OF_A_RUN // workers
    first = _FIRST_OF_A_RUN + worker % workers * count  # a worker that crashed is replaced by one with a new number
    return range(first, first + count)


_PORTS = _ports_of_this_worker()
# Each comes once in a process, in an order of its own: somebody else may run tests on this machine as well.
_UNTRIED = iter(random.SystemRandom().sample(_PORTS, len(_PORTS)))
_TAKEN: set[int] = set()


def lasting_ports(count: int) -> list[int]:
    """Free ports, never the same twice in a process, that no outgoing connection takes before their server has come up
    or while it is down: they lie below the range that the kernel gives out."""
    ports = list(islice((port for port in _UNTRIED if port not in _TAKEN and _is_free(port)), count))
    _TAKEN.update(ports)
    assert len(ports) == count, f"all ports from {_PORTS[0]} to {_PORTS[-1]} were handed out"
    return ports


def consecutive_ports(count: int) -> list[int]:
    """Free ports that follow each other, never the same twice in a process."""
    while True:
        [first] = lasting_ports(1)
        others = list(range(first + 1, first + count))
        if all(port in _PORTS and port not in _TAKEN and _is_free(port) for port in others):
            _TAKEN.update(others)
            return [first, *others]


def dead_url() -> str:
    """An address where nobody listens."""
    return f"http://{_HOST}:{lasting_ports(1)[0]}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((_HOST, port))
        return True
    return False
