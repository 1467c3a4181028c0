"""`slipstream gateway` as a process: start, drain, workers, and errors of one line."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.gateway.pair_manifest import chat, manifest_text
from tests.gateway.serving.resuming import REST, SCRIPT, TEXT, Reading, committed, hold, release
from tests.support.command import SLIPSTREAM, run_slipstream
from tests.support.gateway_process import Process, is_refused, read_all, stream, workers_of
from tests.support.metrics import total
from tests.support.polling import PATIENCE_S, eventually

CLIENTS = 10
JSON_TYPE = {"content-type": "application/json"}


@contextlib.contextmanager
def streaming(process: Process, body: dict[str, Any]) -> Iterator[Reading]:
    """A stream that has begun."""
    url = f"{process.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=PATIENCE_S) as response:
        reading = Reading(response.iter_lines())
        reading.begin()
        yield reading


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_stops_accepting_finishes_streams_and_exits_0(
    start: Callable[..., Process], openai_server: Callable[..., Any], workers: int
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "20", workers=workers)
    connection = stream(process, chat("tokens=60 gap=0.05"))
    first = connection.recv(1000)
    process.child.send_signal(signal.SIGTERM)
    eventually(lambda: is_refused(process))
    assert workers == 1 or workers_of(process), "connections are refused before the workers end"
    answer = first + read_all(connection)
    assert b"w59 " in answer
    assert b"data: [DONE]" in answer
    assert process.child.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rolling_restart_loses_no_request_of_a_kept_connection(
    start: Callable[..., Process], openai_server: Callable[..., Any], workers: int
) -> None:
    """Clients keep connections and ask again and again, as in a rolling restart: two gateways, and the first one is
    told to end. A client connects to the second one when a response has ended its connection."""
    manifest = manifest_text([openai_server().url])
    old, new = (start(manifest, "--leave", "2", workers=workers) for _ in range(2))
    stopped = threading.Event()

    def ask() -> int:
        """How many requests the second gateway answered."""
        moved, connection = 0, http.client.HTTPConnection("127.0.0.1", old.port, timeout=PATIENCE_S)
        while not stopped.is_set():
            connection.request("POST", "/v1/chat/completions", json.dumps(chat("tokens=1")), JSON_TYPE)
            response = connection.getresponse()
            assert response.status == 200
            assert b"choices" in response.read()
            moved += connection.port == new.port
            time.sleep(0.02)
            if response.will_close:
                connection = http.client.HTTPConnection("127.0.0.1", new.port, timeout=PATIENCE_S)
        connection.close()
        return moved

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask) for _ in range(CLIENTS)]
        try:
            time.sleep(0.5)
            old.child.send_signal(signal.SIGTERM)
            assert not is_refused(old), "it serves on"
            assert old.child.wait(PATIENCE_S) == 0
        finally:
            stopped.set()
        assert all(client.result() for client in clients)


def test_a_leaving_gateway_closes_each_connection_after_its_response(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    process = start(manifest_text([openai_server().url]), "--leave", "2")
    kept = http.client.HTTPConnection("127.0.0.1", process.port, timeout=PATIENCE_S)
    kept.request("GET", "/health/live")
    first = kept.getresponse()
    first.read()
    assert first.getheader("connection") is None
    began = time.monotonic()
    process.child.send_signal(signal.SIGTERM)
    eventually(lambda: httpx.get(f"{process.url}/health/live").headers.get("connection") == "close")
    kept.request("GET", "/health/live")
    assert kept.getresponse().getheader("connection") == "close"
    assert process.child.wait(PATIENCE_S) == 0
    assert time.monotonic() - began >= 2


def test_drain_limit_ends_streams_with_an_error_event(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    server = openai_server()
    process = start(manifest_text([server.url]), "--drain", "1")
    connection = stream(process, chat("tokens=10000 gap=0.05"))
    first = connection.recv(1000)
    process.child.send_signal(signal.SIGTERM)
    answer = first + read_all(connection)
    assert b"shutting down" in answer
    assert b"[DONE]" not in answer
    assert process.child.wait(PATIENCE_S) == 0
    assert server.cancelled.wait(PATIENCE_S)


def test_sigterm_while_a_stream_looks_for_a_server_lets_it_go_on_to_its_end(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    servers = [openai_server() for _ in range(3)]
    process = start(manifest_text([server.url for server in servers], policy=TEXT), "--drain", "20")
    with streaming(process, chat(SCRIPT)) as reading:
        held, [left] = hold(servers)
        process.child.send_signal(signal.SIGTERM)
        eventually(lambda: is_refused(process))
        release(held)
        text, error, done = reading.rest()
    assert (text, error, done) == (committed(left) + REST, None, True)
    assert process.child.wait(PATIENCE_S) == 0


def test_drain_limit_ends_a_stream_that_looks_for_a_server_with_an_error_event(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    servers = [openai_server() for _ in range(3)]
    process = start(manifest_text([server.url for server in servers], policy=TEXT), "--drain", "1")
    with streaming(process, chat(SCRIPT)) as reading:
        held, [left] = hold(servers)
        process.child.send_signal(signal.SIGTERM)
        text, error, done = reading.rest()
    assert text == committed(held)
    assert ("shutting down" in error["message"], done) == (True, False)
    assert held.cancelled.wait(PATIENCE_S)
    assert not left.requests
    _, log = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 0
    assert "Traceback" not in log


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/route"])
def test_half_a_body_at_the_end_gets_503_and_no_traceback(
    start: Callable[..., Process], openai_server: Callable[..., Any], path: str
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "1")
    with socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: 1000\r\n\r\n{{".encode())
        url = f"{process.url}/metrics"
        eventually(lambda: "slipstream_requests" in httpx.get(url, timeout=PATIENCE_S).text, "the request's head")
        process.child.send_signal(signal.SIGTERM)
        assert b"503" in read_all(connection).split(b"\r\n")[0]
    _, log = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 0
    assert "Traceback" not in log


@pytest.mark.parametrize("workers", [1, 2])
def test_every_line_of_a_log_for_collectors_is_an_object(
    start: Callable[..., Process], openai_server: Callable[..., Any], workers: int
) -> None:
    options = ("--log-format", "json", "--log-level", "info")
    process = start(manifest_text([openai_server().url]), *options, workers=workers)
    process.child.terminate()
    lines = [json.loads(line) for line in process.child.communicate(timeout=PATIENCE_S)[1].splitlines()]
    assert {(*line,) for line in lines} == {("time", "level", "logger", "message")}
    assert lines[0]["message"] == f"slipstream gateway on {process.url}"
    assert "uvicorn.error" in {line["logger"] for line in lines}


def test_an_end_has_its_reason_in_the_log_for_collectors(tmp_path: Path) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text("kind: Nonsense\n")
    [line] = run_slipstream("gateway", "-f", str(manifest), "--log-format", "json").stderr.splitlines()
    told = json.loads(line)
    assert told["level"] == "error"
    assert told["message"].startswith("slipstream: error: pair.yaml: document 1: kind")


def test_workers_share_the_port_and_each_has_metrics_of_its_own(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "1", workers=2)
    family = psutil.Process(process.child.pid)
    for _ in range(12):
        response = httpx.post(f"{process.url}/v1/chat/completions", json=chat("tokens=1"), timeout=PATIENCE_S)
        assert response.status_code == 200

    def answered(admin: str) -> float:
        return total(httpx.get(f"{admin}/metrics", timeout=PATIENCE_S).text, "slipstream_requests_total")

    eventually(lambda: sum(map(answered, process.admin_urls)) == 12.0, "twelve requests in the metrics of both")
    assert httpx.get(f"{process.url}/metrics", timeout=PATIENCE_S).status_code == 404
    workers = family.children(recursive=True)
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(PATIENCE_S) == 0
    assert psutil.wait_procs(workers, timeout=PATIENCE_S)[1] == []


def test_worker_that_dies_while_the_manifest_is_bad_comes_back_with_the_last_good_one(
    start: Callable[..., Process], openai_server: Callable[..., Any], tmp_path: Path
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "1", workers=2)
    (tmp_path / "pair.yaml").write_text("kind: Nonsense\n")
    old = workers_of(process)
    for worker in old:
        worker.kill()
    eventually(lambda: len(set(workers_of(process)) - set(old)) == 2)
    process.wait_live()
    response = httpx.post(f"{process.url}/v1/chat/completions", json=chat("tokens=1"), timeout=PATIENCE_S)
    assert response.status_code == 200
    process.child.send_signal(signal.SIGTERM)
    _, log = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 0
    assert "the last good one stays: pair.yaml: document 1: kind: must be ModelPair or SpeculationPolicy" in log
    assert "Traceback" not in log


def test_workers_that_cannot_start_end_the_gateway_with_an_error(
    start: Callable[..., Process], openai_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as private:  # short: it holds a Unix socket
        monkeypatch.setenv("TMPDIR", private)
        process = start(manifest_text([openai_server().url]), "--drain", "1", workers=2)
        (tmp_path / "pair.yaml").write_text("kind: Nonsense\n")
        [kept] = Path(private).glob("*/last-good.yaml")
        kept.unlink()  # nothing is left to start with
        workers_of(process)[0].kill()
        _, log = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 1
    assert log.splitlines()[-1].startswith("slipstream: error: a worker failed to start")


def test_worker_that_dies_is_replaced_at_once_also_while_another_hangs(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "1", workers=2)
    hung, dying = workers_of(process)
    hung.suspend()
    try:
        dying.kill()
        eventually(lambda: set(workers_of(process)) - {hung, dying})
    finally:
        hung.resume()
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("piece", [500, 1024 * 1024])
def test_endless_head_is_refused(start: Callable[..., Process], openai_server: Callable[..., Any], piece: int) -> None:
    process = start(manifest_text([openai_server().url]))
    with socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S) as connection:
        sent = b"GET /health/live HTTP/1.1\r\n" + b"x: %s\r\n" % (b"y" * 80) * 850 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for begin in range(0, len(sent), piece):
                connection.sendall(sent[begin : begin + piece])
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
    assert httpx.get(f"{process.url}/health/live", headers={"x": "y" * 60000}, timeout=PATIENCE_S).status_code == 200


def test_port_in_use_is_one_line(openai_server: Callable[..., Any], tmp_path: Path) -> None:
    server = openai_server()
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text([server.url]))
    done = run_slipstream("gateway", "-f", str(manifest), "--port", str(server.port))
    assert done.returncode == 1
    assert done.stderr == f"slipstream: error: cannot listen on 127.0.0.1:{server.port}: Address already in use.\n"


@pytest.mark.parametrize(
    ("address", "reason"),
    [("unix:/no/such/folder/x", "No such file or directory"), ("unix:/dev/null", "Address already in use")],
)
def test_unavailable_socket_file_of_the_filter_is_one_line(tmp_path: Path, address: str, reason: str) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text(["http://127.0.0.1:9"]))
    done = run_slipstream("extproc", "-f", str(manifest), "--port", "0", "--ext-proc", address)
    assert done.returncode == 1
    assert done.stderr.endswith(f"\nslipstream: error: cannot listen on {address}: {reason}.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["gateway", "-f", "/no/such.yaml"], 2, "/no/such.yaml: cannot be read: No such file or directory"),
        (["bench"], 2, "--requests is required without --suite"),
        (["unheard-of"], 2, "invalid choice: 'unheard-of'"),
        ([], 2, "slipstream COMMAND"),
        (["gateway", "-f", "x", "--port", "abc"], 2, "argument --port: expected a whole number, got 'abc'"),
        (
            ["gateway", "-f", str(EMBEDDED_MANIFEST), "--redis", "http://u:pw@x"],
            1,
            "the Redis URL must be redis://",
        ),
        (["gateway", "-f", str(EMBEDDED_MANIFEST), "--classifier", "/no/such"], 2, "/no/such: cannot be read: No such"),
        (["gateway", "-f", "x", "--local-endpoint", "ftp://a:1"], 2, "--local-endpoint: the address must be grpc://"),
        (["gateway", "-f", str(EMBEDDED_MANIFEST), "--workers", "2"], 2, "--workers 2: each worker is a gateway"),
        (["up", "--workers", "2"], 2, "Give --admin-port PORT; the admin paths of the workers are on this port"),
        (["up", "--port", "abc"], 2, "argument --port: expected a whole number, got 'abc'"),
        (["up", "--port", "0"], 2, "argument --port: a port is 1 to 65535, got 0"),
        (["up", "--timeout", "nan"], 2, "argument --timeout: expected seconds above 0, got 'nan'"),
        (["route", "--mode", "zzz"], 2, "'zzz' (choose from 'auto', 'speculative', 'plain')"),
    ],
)
def test_known_errors_are_one_clear_line(arguments: list[str], code: int, part: str) -> None:
    done = run_slipstream(*arguments)
    assert done.returncode == code
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_manifest_and_bad_endpoint_are_named(tmp_path: Path) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text("kind: Nonsense\n")
    bad = run_slipstream("gateway", "-f", str(manifest))
    assert (bad.returncode, "kind" in bad.stderr, "Traceback" in bad.stderr) == (2, True, False)
    manifest.write_text(manifest_text(["http://127.0.0.1:1"]))
    unknown = run_slipstream("gateway", "-f", str(manifest), "--endpoint", "other=grpc://127.0.0.1:1")
    assert unknown.returncode == 2
    assert "no ModelPair 'other'" in unknown.stderr
    wrong = run_slipstream("gateway", "-f", str(manifest), "--endpoint", "pair=grpc://127.0.0.1:1")
    assert wrong.returncode == 2
    assert "--endpoint pair=…: the address must be http://host:port" in wrong.stderr
    manifest.write_text(manifest_text(["http://host\\x:80"]))
    address = run_slipstream("gateway", "-f", str(manifest))
    assert address.returncode == 2
    assert len(address.stderr.splitlines()) == 1
    assert "ModelPair/pair: spec.engine.arms.plain.endpoints[0]: must be http://host:port" in address.stderr


def test_a_variable_that_holds_no_api_key_is_named(tmp_path: Path) -> None:
    manifest = tmp_path / "pair.yaml"
    text = manifest_text(["http://127.0.0.1:1"]).replace("protocol: openai", "protocol: openai, apiKeyEnv: A_KEY", 1)
    manifest.write_text(text)
    refused = run_slipstream("gateway", "-f", str(manifest), env={"A_KEY": "sk-one\nsk-two\n"})
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert "ModelPair/pair: spec.engine.arms.plain.apiKeyEnv: the environment variable A_KEY is no API key" in line
    assert "sk-" not in line


def test_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "slipstream-embedded", "prompt": "Hello there"}))
    command = [*SLIPSTREAM, "route", str(body)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.close()
    _, errors = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, errors) == (141, "")


def test_help_imports_no_server() -> None:
    probe = (
        "import sys; from slipstream_tools.cli import main; main([]); "
        "print(sorted(set(sys.modules) & {'starlette', 'uvicorn', 'grpc', 'torch', 'yaml'}))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == "[]"
