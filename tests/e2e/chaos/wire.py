"""A bad network between two namespaces of this machine: IP packets are lost and late, TCP and all above it is the
kernel's own.

Two TUN devices, one in each namespace, and a process that carries packets from one to the other: what `tc netem` does
in the kernel, which has it in few containers. Needs root and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import heapq
import multiprocessing
import os
import random
import select
import shutil
import struct
import subprocess
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Self

from tests.e2e.chaos.processes import end_with_parent

NEAR, FAR = "10.213.47.1", "10.213.47.2"  # this namespace's end, and the other's
_TUN = Path("/dev/net/tun")
_SET_INTERFACE = 0x400454CA  # TUNSETIFF
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MTU = 1_500
_STOP_S = 5.0
_SEED = 5


class NotHere(Exception):
    """This machine does not allow namespaces or TUN devices; the message says which."""


class Wire:
    """The namespace `name`, reached over a link that loses the share `loss` of all packets and delays each by
    `delay_s`; both may be changed at any time. `with` makes it, and takes it away."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loss: Synchronized[float] = multiprocessing.Value("d", 0.0)
        self._delay_s: Synchronized[float] = multiprocessing.Value("d", 0.0)
        self._ends: list[int] = []
        self._process: multiprocessing.process.BaseProcess | None = None

    def impair(self, *, loss: float = 0.0, delay_s: float = 0.0) -> None:
        """Of every packet, in both directions."""
        self._loss.value, self._delay_s.value = loss, delay_s

    def reset(self, port: int) -> None:
        """Reset every TCP connection of the namespace to a port of this one, as a firewall that forgot them does."""
        _run("ip", "netns", "exec", self.name, "ss", "--kill", "--tcp", "dst", NEAR, "dport", "=", str(port))

    def command(self) -> tuple[str, ...]:
        """What runs a command there."""
        return ("ip", "netns", "exec", self.name)

    def __enter__(self) -> Self:
        """Raises `NotHere`."""
        missing = [program for program in ("ip", "ss") if shutil.which(program) is None]
        if os.geteuid() != 0 or missing or not _TUN.exists():
            raise NotHere("needs root, iproute2 (ip, ss) and /dev/net/tun")
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise NotHere(f"the kernel refuses: {said}") from error
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join(_STOP_S)
        for end in self._ends:  # a TUN device goes with its last descriptor
            os.close(end)
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)

    def _make(self) -> None:
        _run("ip", "netns", "add", self.name)
        inside = self.command()
        near, far = f"sl{os.getpid() % 10_000}a", f"sl{os.getpid() % 10_000}b"
        self._ends = [_tun(near), _tun(far)]
        _run("ip", "address", "add", NEAR, "peer", FAR, "dev", near)
        _run("ip", "link", "set", near, "up")
        _run("ip", "link", "set", far, "netns", self.name)
        _run(*inside, "ip", "address", "add", FAR, "peer", NEAR, "dev", far)
        _run(*inside, "ip", "link", "set", far, "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        arguments = (*self._ends, self._loss, self._delay_s)
        self._process = multiprocessing.get_context("fork").Process(target=_carry, args=arguments, daemon=True)
        self._process.start()


def _carry(near: int, far: int, loss: Synchronized[float], delay_s: Synchronized[float]) -> None:
    """Carry packets until the process ends. Those that are under way lie in a heap by the moment they arrive."""
    end_with_parent()
    rng = random.Random(_SEED)
    under_way: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        timeout_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([near, far], [], [], timeout_s)
        for end in readable:
            packet = os.read(end, _MTU + 64)
            number += 1
            if rng.random() >= loss.value:
                other = far if end == near else near
                heapq.heappush(under_way, (time.monotonic() + delay_s.value, number, other, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, other, packet = heapq.heappop(under_way)
            os.write(other, packet)


def _tun(name: str) -> int:
    end = os.open(_TUN, os.O_RDWR)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return end


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
