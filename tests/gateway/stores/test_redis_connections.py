"""Connections: TLS, Unix sockets, commands that a server does not have, and the end of a store."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.redis.redis_store import RedisStore

from tests.gateway.stores.outcomes import observation
from tests.support.polling import soon

pytestmark = pytest.mark.integration


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for `localhost`, signed by its own key, and that key."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, *files, *names], check=True, capture_output=True, timeout=20)
    return certificate, key


async def test_tls_is_used_and_the_servers_certificate_verified(
    redis_server: Any,
    replica: Any,
    free_ports: Callable[[int], list[int]],
    certificate: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    port, (path, key) = free_ports(1)[0], certificate
    tls = ("--tls-port", str(port), "--tls-cert-file", str(path), "--tls-key-file", str(key))
    redis_server(*tls, "--tls-auth-clients", "no")
    stranger = replica(f"rediss://localhost:{port}")
    await soon(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text, "the line about the certificate")
    trusting = replica(f"rediss://localhost:{port}?ssl_ca_certs={path}")
    other_name = replica(f"rediss://127.0.0.1:{port}?ssl_ca_certs={path}&ssl_check_hostname=false")
    trusting.store.append(observation(1))
    await soon(lambda: other_name.numbers == [1], "the outcome")
    assert not stranger.store.status().connected


async def test_unix_socket(tmp_path: Path, redis_server: Any, replica: Any) -> None:
    redis_server("--unixsocket", str(tmp_path / "s"))
    writer, reader = replica(f"unix://{tmp_path}/s"), replica(f"unix://{tmp_path}/s?db=0")
    other = replica(f"unix://{tmp_path}/s?db=1")
    writer.store.append(observation(1))
    await soon(lambda: reader.numbers == [1], "the outcome")
    assert other.seen == []


async def test_a_store_that_is_cancelled_at_any_moment_ends_at_once(redis_server: Any) -> None:
    url, chance = redis_server().url, random.Random(1)
    for _ in range(100):
        store = RedisStore(url, pairs=lambda: ("acme",), interval_s=0.0)
        task = asyncio.create_task(store.run(lambda _: None))
        for number in range(chance.choice((0, 1, 200))):
            store.append(observation(number))
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=5.0)
        assert ended
        assert task.cancelled()
        await store.aclose()


async def test_server_that_repeats_its_arguments_shows_no_password(
    redis_server: Any, replica: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server("--rename-command", "AUTH", "", "--rename-command", "EVAL", "")
    replica(server.url.replace("//", "//:sesame-17@"))
    await soon(lambda: "unknown command 'AUTH'" in caplog.text, "the line about AUTH")
    replica(server.url)
    await soon(lambda: "unknown command 'EVAL'" in caplog.text, "the line about EVAL")
    assert "sesame" not in caplog.text
    assert all(len(record.getMessage()) < 300 for record in caplog.records if record.levelno >= logging.WARNING)
