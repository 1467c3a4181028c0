"""How long `/health/live` takes while clients of the filter's gRPC server flood the same worker.

The gateway has core 0 for itself; the clients share the other one. Each flood comes from several connections, which are
opened again as soon as the gateway closes them. Beside each flood the same is measured without one, by turns: the
tail of a busy machine is not the gateway's. Goal: p99 of at most 100 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import hpack
import httpx
from slipstream_gateway.grpc_server.frames import HEADER, PREFACE, FrameType, frame

from tests.benchmarks import canned
from tests.benchmarks.harness import Option, Report, benchmark, percentiles
from tests.support.ports import lasting_ports

_END_HEADERS, _FRAMES = 4, 20_000
_PATH = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_HEAD = hpack.Encoder().encode(
    [(":method", "POST"), (":scheme", "http"), (":path", _PATH), ("content-type", "application/grpc")], huffman=False
)
_OPEN = frame(FrameType.HEADERS, _END_HEADERS, 1, _HEAD)


def _calls(*more: tuple[FrameType, bytes]) -> bytes:
    """Heads of calls, each with `more` frames."""
    frames = []
    for stream in range(1, 2 * _FRAMES, 2):
        frames.append(frame(FrameType.HEADERS, _END_HEADERS, stream, _HEAD))
        frames += [frame(kind, 0, stream, payload) for kind, payload in more]
    return b"".join(frames)


def floods() -> dict[str, bytes]:
    """The bytes after the preface and SETTINGS, by name."""
    many = _FRAMES
    blocks = hpack.Encoder().encode([("x", "e" * 9_000)])
    return {
        "empty CONTINUATION": frame(FrameType.HEADERS, 0, 1, _HEAD) + frame(FrameType.CONTINUATION, 0, 1) * many,
        "PING": frame(FrameType.PING, 0, 0, bytes(8)) * many,
        "SETTINGS": frame(FrameType.SETTINGS, 0, 0) * many,
        "window in SETTINGS": _calls()[:20_000]
        + frame(FrameType.SETTINGS, 0, 0, b"\0\4\0\0\0\1\0\4\0\0\0\2" * 1_365) * 100,
        "rapid reset": _calls((FrameType.RST_STREAM, bytes(4))),
        "calls without a message": _calls(),
        "empty DATA": _OPEN + frame(FrameType.DATA, 0, 1) * many,
        "empty messages": _OPEN + frame(FrameType.DATA, 0, 1, bytes(16_380)) * 60,
        "WINDOW_UPDATE": _OPEN + frame(FrameType.WINDOW_UPDATE, 0, 1, b"\0\0\0\1") * many,
        "PRIORITY": frame(FrameType.PRIORITY, 0, 1, bytes(5)) * many,
        "unknown frames": HEADER.pack(0, 0, 0xFA, 0, 1) * many,
        "long header blocks": b"".join(
            frame(FrameType.HEADERS, _END_HEADERS, stream, blocks) for stream in range(1, 2_001, 2)
        ),
        "resized tables": frame(FrameType.HEADERS, _END_HEADERS, 1, b"\x20" * 8_000) * 1_000,
        "no preface": b"",
    }


def _flood(port: int, name: str) -> None:
    """Sends one flood without end, over connections that follow each other."""
    data = floods()[name]
    hello = b"" if name == "no preface" else PREFACE + frame(FrameType.SETTINGS, 0, 0)
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(hello + data)
            client.settimeout(0.2)
            while client.recv(1 << 20):
                pass


@contextmanager
def _flooding(port: int, name: str) -> Iterator[None]:
    client = multiprocessing.Process(target=_flood, args=(port, name), daemon=True)
    client.start()
    try:
        yield
    finally:
        client.kill()
        client.join()


def _latencies_s(url: str, seconds: float) -> list[float]:
    found = []
    end_s = time.monotonic() + seconds
    with httpx.Client(timeout=60.0) as client:
        client.get(url)
        while time.monotonic() < end_s:
            began_s = time.perf_counter()
            client.get(url).raise_for_status()
            found.append(time.perf_counter() - began_s)
            time.sleep(0.01)
    return found


def measure(args: argparse.Namespace, report: Report) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(canned.upstream())
        [filter_port] = lasting_ports(1)
        options = (*canned.manifest(folder, upstream), "--ext-proc", f"127.0.0.1:{filter_port}")
        port, _ = stack.enter_context(canned.gateway(folder, *options))
        url = f"http://127.0.0.1:{port}/health/live"
        for name in floods():
            without: list[float] = []
            found: list[float] = []
            for _ in range(args.rounds):
                without += _latencies_s(url, args.seconds)
                with ExitStack() as flood:
                    for _ in range(args.clients):
                        flood.enter_context(_flooding(filter_port, name))
                    time.sleep(0.5)
                    found += _latencies_s(url, args.seconds)
            report.row(f"{name}: none", requests=len(without), **percentiles(without, "ms", 50, 99, scale=1e3))
            report.row(name, requests=len(found), **percentiles(found, "ms", 50, 99, scale=1e3))


if __name__ == "__main__":
    benchmark(
        __file__, __doc__, measure,
        seconds=Option(2.0, 0.5, "for each flood and round"), rounds=Option(3, 1, "by turns"),
        clients=Option(4, 2, "connections at once"),
    )  # fmt: skip
