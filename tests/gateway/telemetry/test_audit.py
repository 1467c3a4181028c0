"""The audit log: whole lines, from several processes, over rotations, and never in anybody's way."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.settings import AccessSettings, AuditSettings
from slipstream_gateway.telemetry.audit import MAX_PENDING, REFUSALS_PER_FLUSH, Audit, LineSink
from slipstream_tools.cli import main
from slipstream_tools.gateway.options.checks import audit_of

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, soon

WRITER = """
import sys
from pathlib import Path
from slipstream_gateway.telemetry.audit import LineSink
sink = LineSink(Path(sys.argv[1]))
for at in range(200):
    sink.write([lambda n=n: {"who": sys.argv[2], "at": at, "n": n, "pad": "x" * 500} for n in range(20)], [])
"""

# A limit of the file's size, as a disk that is full: it takes the first part of a write, and then nothing.
ON_A_FULL_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from slipstream_gateway.telemetry import audit

audit.MAX_PENDING = 300
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    log = audit.Audit(audit.LineSink(Path(sys.argv[1])))
    async with log.running():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_050, resource.RLIM_INFINITY))
        for number in range(500):
            log.event("configuration", generation=str(number))
            if number % 50 == 0:
                await log._flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await log._flush()
        log.event("last")
    print(log.dropped_total)

asyncio.run(main())
"""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.integration
def test_processes_share_a_file_and_every_line_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), name]) for name in ("a", "b")]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0]
    found = lines(file)
    assert len(found) == 2 * 200 * 20
    for name in ("a", "b"):  # in order, each by itself
        own = [(line["at"], line["n"]) for line in found if line["who"] == name]
        assert own == sorted(own)


async def test_file_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    file, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    audit = Audit(LineSink(file))
    async with audit.running():
        audit.event("kill", who="alice", pair="a")
        await soon(lambda: file.read_text() != "")
        file.rename(moved)
        audit.event("unkill", who="bob", pair="a")
        await soon(lambda: file.exists() and file.read_text() != "")
    assert [(line["event"], line["who"]) for line in (*lines(moved), *lines(file))] == [
        ("kill", "alice"),
        ("unkill", "bob"),
    ]


async def test_what_does_not_fit_is_dropped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(LineSink(file))
    for number in range(MAX_PENDING + 7):
        audit.event("configuration", generation=str(number))
    async with audit.running():
        pass
    found = lines(file)
    assert len(found) == MAX_PENDING + 1
    assert (found[-1]["event"], found[-1]["lines"], audit.dropped_total) == ("dropped", 7, 7)


async def test_line_of_a_process_that_was_stopped_within_it_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"event": "decis')
    audit = Audit(LineSink(file))
    async with audit.running():
        audit.event("kill", who="alice", pair="a")
    fragment, *whole = file.read_text().splitlines()
    assert fragment == '{"event": "decis'
    assert [json.loads(line)["event"] for line in whole] == ["kill"]


async def test_refusals_are_counted_while_no_line_has_room(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(LineSink(file))
    for number in range(MAX_PENDING):
        audit.event("configuration", generation=str(number))
    for _ in range(1000):
        audit.refused("unauthenticated")
    async with audit.running():
        await soon(lambda: audit.waiting == 0)
    found = lines(file)
    refused = [line for line in found if line["event"] == "refused"]
    [dropped] = [line["lines"] for line in found if line["event"] == "dropped"]
    assert (sum(line.get("more", 1) for line in refused), dropped) == (1000 - REFUSALS_PER_FLUSH, REFUSALS_PER_FLUSH)


async def test_many_refusals_of_a_kind_become_one_line_with_their_number(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = Audit(LineSink(file))
    for _ in range(1000):
        audit.refused("unauthenticated")
    async with audit.running():
        pass
    found = lines(file)
    assert len(found) == REFUSALS_PER_FLUSH + 1
    assert sum(line.get("more", 1) for line in found) == 1000


async def test_disk_that_is_full_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(LineSink(Path("/dev/full")))
    async with audit.running():
        audit.event("kill", who="alice")
        await soon(lambda: "/dev/full cannot be written: No space left on device" in caplog.text)


def test_lines_of_a_full_disk_are_written_later_and_each_lost_one_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    done = subprocess.run([sys.executable, "-c", ON_A_FULL_DISK, str(file)], capture_output=True, text=True, check=True)
    found, torn = [], 0
    for line in file.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            torn += 1
    numbers = [int(line["generation"]) for line in found if line["event"] == "configuration"]
    assert numbers == sorted(set(numbers))
    lost = sum(line["lines"] for line in found if line["event"] == "dropped")
    assert (len(numbers) + lost, torn) == (500, 1)
    assert "last" in {line["event"] for line in found[-2:]}
    assert lost == int(done.stdout) > 0
    assert done.stderr.count("cannot be written") == 1


def test_gateway_writes_down_what_it_decided(tmp_path: Path, run_gateway: Any, openai_server: Any) -> None:
    file, server = tmp_path / "audit.jsonl", openai_server()
    text = manifest_text([server.url], [server.url])
    with run_gateway(tmp_path / "pair.yaml", text, audit=AuditSettings(is_on=True, file=file)) as gateway:
        url = f"{gateway.url}/v1/chat/completions"
        headers = {"x-request-id": "mine", "x-slipstream-mode": "speculative"}
        assert (
            httpx.post(url, json=chat("tokens=3 secret", stream=True), headers=headers, timeout=PATIENCE_S).status_code
            == 200
        )
        assert httpx.post(url, json={"model": "acme"}, timeout=PATIENCE_S).status_code == 400
    found = lines(file)
    configuration, decision, refused = found
    assert (configuration["event"], configuration["models"]) == ("configuration", 1)
    told = [decision[name] for name in ("event", "request_id", "pair", "model", "arm", "reason", "status")]
    assert told == ["decision", "mine", "pair", "acme", "speculative", "client_asked", "ok"]
    assert decision["output_tokens"] == 3
    assert decision["time"].endswith("Z")
    assert (refused["event"], refused["error"]) == ("refused", "invalid_request")
    assert "secret" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_kill_switch_that_turns_is_an_event(tmp_path: Path, run_gateway: Any, openai_server: Any) -> None:
    file, manifest, server = tmp_path / "audit.jsonl", tmp_path / "pair.yaml", openai_server()
    text = manifest_text([server.url], [server.url])
    with run_gateway(manifest, text, audit=AuditSettings(is_on=True, file=file)):
        for killed in (True, False):
            manifest.write_text(text.replace("model: acme\n", f"model: acme\n  killSwitch: {str(killed).lower()}\n", 1))
            asyncio.run(soon(lambda: len(lines(file)) >= (3 if killed else 5)))  # noqa: B023 - asked at once
    assert [line["event"] for line in lines(file) if line["event"] != "configuration"] == ["kill", "unkill"]


def test_changed_capture_is_an_event(tmp_path: Path, run_gateway: Any, openai_server: Any) -> None:
    file, manifest, server = tmp_path / "audit.jsonl", tmp_path / "pair.yaml", openai_server()
    captures = (", capture: {share: 0.5, words: [Ada]}", ", capture: {share: 1, words: [Ada]}", "")
    first, *others = (manifest_text([server.url], [server.url], policy=capture) for capture in captures)
    with run_gateway(manifest, first, audit=AuditSettings(is_on=True, file=file)):
        for number, text in enumerate(others, start=2):
            manifest.write_text(text)
            asyncio.run(soon(lambda: len(_captures(file)) >= number))  # noqa: B023 - asked at once
    assert [(line["on"], line.get("share"), line.get("words")) for line in _captures(file)] == [
        (True, 0.5, 1),
        (True, 1.0, 1),
        (False, None, None),
    ]
    assert "Ada" not in file.read_text()


def _captures(file: Path) -> list[Any]:
    return [line for line in lines(file) if line["event"] == "capture"]


def test_file_that_cannot_be_written_is_said_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "-f", str(EMBEDDED_MANIFEST), "--audit-log", "/no/such/folder/x"]) == 1
    assert "--audit-log /no/such/folder/x: No such file or directory" in capsys.readouterr().err


def test_keys_that_come_into_force_are_an_event(tmp_path: Path, run_gateway: Any, openai_server: Any) -> None:
    file, keys, server = tmp_path / "audit.jsonl", tmp_path / "keys.json", openai_server()
    assert main(["keys", "create", "-f", str(keys), "--name", "first"]) == 0
    settings = {"audit": AuditSettings(is_on=True, file=file), "access": AccessSettings(keys=keys)}
    with run_gateway(tmp_path / "pair.yaml", manifest_text([server.url]), **settings):
        assert main(["keys", "create", "-f", str(keys)]) == 0
        asyncio.run(soon(lambda: len(of_keys(file)) == 2))
    assert [(line["who"], line["keys"]) for line in of_keys(file)] == [("file", 1), ("file", 2)]


def of_keys(file: Path) -> list[dict[str, Any]]:
    return [line for line in lines(file) if line["event"] == "keys"]


def test_file_of_a_fresh_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit_of(argparse.Namespace(audit_log=str(file)))
    assert file.stat().st_mode & 0o777 == 0o600
