"""Two listeners, two sides: no path, header or host makes one answer for the other."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_gateway.server.listening import check_apart

from tests.support.command import SLIPSTREAM
from tests.support.gateway_process import wait_live
from tests.support.polling import PATIENCE_S
from tests.support.ports import consecutive_ports

ADMIN_PATHS = ("/metrics", "/v1/evidence")
TRICKS = (
    "//metrics",
    "/%6detrics",
    "/%2e/metrics",
    "/v1/../metrics",
    "/v1/%2e%2e/metrics",
    "/v1/models/../../metrics",
    "/v1/models/%2e%2e%2f%2e%2e%2fmetrics",
    "/METRICS",
    "/metrics/",
    "/metrics/.",
    "/metrics.",
    "/metrics%00",
    "/metrics;x=1",
    "/metrics#",
    "/v1//evidence",
    "/v1/evidence/",
    "/v1%2fevidence",
    "/./v1/evidence",
    "/health/../metrics",
    "/console",
    "/console/",
    "/admin/",
)


class Sides:
    """A running gateway with two ports."""

    def __init__(self, manifest: Path, ports: list[int], *options: str) -> None:
        self.public, self.admin = ports
        command = [*SLIPSTREAM, "gateway", "-f", str(manifest)]
        command += ["--port", str(self.public), "--admin-port", str(self.admin), *options]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def ask(self, port: int, target: str, *headers: str, method: str = "GET", body: bytes = b"") -> int:
        """The status of a request whose first line says `target`, byte by byte."""
        lines = [f"{method} {target} HTTP/1.1", *headers, f"content-length: {len(body)}", "connection: close"]
        if method == "POST":
            lines.append("content-type: application/json")
        if not any(line.lower().startswith("host:") for line in headers):
            lines.append(f"host: 127.0.0.1:{port}")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return int(answer.split(maxsplit=2)[1])

    def wait_live(self) -> None:
        wait_live(self.child, *(f"http://127.0.0.1:{port}/health/live" for port in (self.public, self.admin)))


@pytest.fixture(scope="module", params=["1", "2"], ids=["one worker", "two workers"])
def sides(request: Any, tmp_path_factory: Any, free_ports: Callable[[int], list[int]]) -> Iterator[Sides]:
    ports = [*free_ports(1), consecutive_ports(2)[0]]
    started = Sides(EMBEDDED_MANIFEST, ports, "--workers", request.param)
    try:
        started.wait_live()
        yield started
    finally:
        started.child.terminate()
        started.child.communicate(timeout=PATIENCE_S)


def test_each_path_exists_on_its_side_alone(sides: Sides) -> None:
    for path in ADMIN_PATHS:
        assert (sides.ask(sides.public, path), sides.ask(sides.admin, path)) == (404, 200)
    assert (sides.ask(sides.public, "/v1/models"), sides.ask(sides.admin, "/v1/models")) == (200, 404)
    for path in ("/v1/chat/completions", "/v1/completions"):
        found = [sides.ask(port, path, method="POST", body=b"{}") for port in (sides.public, sides.admin)]
        assert found == [400, 404]


@pytest.mark.parametrize("target", TRICKS)
def test_no_spelling_of_an_admin_path_is_answered_on_the_public_side(sides: Sides, target: str) -> None:
    assert sides.ask(sides.public, target) in (400, 404)


def test_no_header_moves_a_request_to_the_other_side(sides: Sides) -> None:
    admin = f"127.0.0.1:{sides.admin}"
    for header in (
        f"host: {admin}",
        f"x-forwarded-host: {admin}",
        f"x-forwarded-port: {sides.admin}",
        f"forwarded: for=127.0.0.1;host={admin};proto=http",
        "x-forwarded-for: 127.0.0.1",
        "x-original-url: /metrics",
        "x-rewrite-url: /metrics",
        "x-http-method-override: GET",
    ):
        assert sides.ask(sides.public, "/metrics", header) == 404
    assert sides.ask(sides.public, f"http://{admin}/metrics") == 404  # the absolute form, as to a proxy
    assert sides.ask(sides.admin, "/metrics", f"host: 127.0.0.1:{sides.public}") == 200


def test_public_side_explains_without_what_others_requests_taught(sides: Sides) -> None:
    body = {"model": "slipstream-embedded", "messages": [{"role": "user", "content": "Summarize: the cat sat."}]}
    public, admin = (
        httpx.post(f"http://127.0.0.1:{port}/v1/route", json=body, timeout=PATIENCE_S).json()
        for port in (sides.public, sides.admin)
    )
    assert set(admin) - set(public) == {"detail", "numbers"}
    assert {"arm", "reason", "class", "profile"} <= set(public)


def test_public_port_says_where_each_side_is(tmp_path: Path) -> None:
    command = [*SLIPSTREAM, "gateway", "-f", str(EMBEDDED_MANIFEST)]
    child = subprocess.Popen([*command, "--port", "0", "--admin-port", "0"], stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        public, admin = child.stderr.readline(), child.stderr.readline()
        assert public.startswith("slipstream gateway on http://127.0.0.1:")
        assert admin.startswith("admin paths on http://127.0.0.1:")
        wait_live(child, f"{admin.split()[-1]}/metrics")  # its sockets listen before its workers run
    finally:
        child.terminate()
        child.communicate(timeout=PATIENCE_S)


def test_two_sides_on_one_port_number_are_refused_and_named() -> None:
    """A request's side is told by the port, so that addresses of their own do not help."""
    with socket.create_server(("127.0.0.1", 0)) as public:
        port = public.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)) as admin, pytest.raises(CommandError) as refused:
            check_apart(public, admin)
        assert f"--port (127.0.0.1:{port}) and --admin-port (127.0.0.2:{port})" in str(refused.value)
        with socket.create_server(("127.0.0.1", 0)) as other:
            check_apart(public, other)


def test_a_name_that_was_made_to_point_here_opens_nothing(sides: Sides) -> None:
    """DNS rebinding: the browser of a page at `evil.example` says so in `host`."""
    paths = ("/metrics", "/v1/evidence", "/console", "/console/main.js", "/admin/events", "/admin/kills/pair")
    body = b'{"model": "slipstream-embedded", "prompt": "Hi"}'
    for host in ("evil.example", f"evil.example:{sides.admin}", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.7"):
        for path in paths:
            assert sides.ask(sides.admin, path, f"host: {host}") == (405 if "kills" in path else 403), (path, host)
        assert sides.ask(sides.admin, "/v1/route", f"host: {host}", method="POST", body=body) == 403
        assert sides.ask(sides.admin, "/health/live", f"host: {host}") == 200
        assert sides.ask(sides.public, "/v1/models", f"host: {host}") == 403
        assert sides.ask(sides.public, "/v1/completions", f"host: {host}", method="POST", body=body) == 403
        assert sides.ask(sides.public, "/health/live", f"host: {host}") == 200
    for host in ("localhost", f"LOCALHOST:{sides.admin}", "127.0.0.1", "127.8.8.8:1", "[::1]:80", "[::ffff:127.0.0.1]"):
        assert sides.ask(sides.admin, "/metrics", f"host: {host}") == 200, host
    assert sides.ask(sides.admin, "/v1/route", "host: localhost", method="POST", body=body) == 200


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 403),
        (("--open-metrics",), 403),
        (("--admin-host", "0.0.0.0", "--allow-anonymous"), 200),
    ],
    ids=["loopback", "open metrics", "every address"],
)
def test_hosts_are_asked_for_where_only_this_machine_listens(
    tmp_path: Path, free_ports: Callable[[int], list[int]], options: tuple[str, ...], status: int
) -> None:
    """A Prometheus or a probe of a kubelet goes by a pod's address or a service's name."""
    started = Sides(EMBEDDED_MANIFEST, free_ports(2), *options)
    try:
        started.wait_live()
        for host in ("10.1.2.3:9090", "metrics.internal"):
            assert started.ask(started.admin, "/metrics", f"host: {host}") == status
    finally:
        started.child.terminate()
        started.child.communicate(timeout=PATIENCE_S)
