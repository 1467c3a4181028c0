"""TLS to upstreams, over real sockets: who is believed, who is not, and files that change while the gateway runs."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from slipstream_core.errors import CommandError, UpstreamUnavailable
from slipstream_core.settings import TlsSettings, UpstreamSettings
from slipstream_gateway.upstreams.engine_server import EngineUpstream
from slipstream_gateway.upstreams.tls import UpstreamTls, read_credentials
from slipstream_tools.up.processes import Child
from slipstream_tools.up.triton_install import find_triton, link_libraries, triton_environment

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.engines import engine_in_triton
from tests.support.hanging_files import replace_by_fifo
from tests.support.polling import PATIENCE_S, eventually, soon


def ask(gateway: Any, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)


def test_server_with_both_certificates_is_talked_to(
    certificates: Any, tls_front: Any, openai_server: Any, gateway: Any
) -> None:
    ours, theirs = certificates("ours"), certificates("theirs")
    front = tls_front(openai_server().port, theirs.server(clients=ours.ca))
    tls = TlsSettings(ca=theirs.ca, certificate=ours.certificate, key=ours.key)
    text = manifest_text([f"https://127.0.0.1:{front.port}"])
    started = gateway(text, upstreams=UpstreamSettings(tls=tls))
    assert ask(started, chat("tokens=2")).status_code == 200
    streamed = ask(started, chat("tokens=2", stream=True))
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert all(front.peers)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("another authority", "certificate verify failed: unable to get local issuer certificate"),
        ("expired", "certificate verify failed: certificate has expired"),
        ("another name", "certificate verify failed: IP address mismatch"),
        ("no client certificate", "--upstream-cert"),
    ],
)
def test_what_is_wrong_with_a_server_is_logged_and_not_told(
    case: str, said: str, certificates: Any, tls_front: Any, openai_server: Any, gateway: Any, 
    caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    ours, theirs = certificates("ours"), certificates("theirs")
    if case == "expired":
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        theirs.renew(theirs.authority.issue_cert("127.0.0.1", not_after=past))
    if case == "another name":
        theirs.renew(theirs.authority.issue_cert("other.example"))
    clients = ours.ca if case == "no client certificate" else None
    front = tls_front(openai_server().port, theirs.server(clients=clients))
    ca = ours.ca if case == "another authority" else theirs.ca
    text = manifest_text([f"https://127.0.0.1:{front.port}"])
    started = gateway(text, upstreams=UpstreamSettings(tls=TlsSettings(ca=ca)))
    with caplog.at_level(logging.WARNING):
        answer = ask(started, chat("tokens=2"))
    assert answer.status_code == 503
    assert "127.0.0.1" not in answer.text
    assert said in caplog.text


def test_new_files_are_used_without_a_restart(
    certificates: Any, tls_front: Any, openai_server: Any, gateway: Any
) -> None:
    """The server believes clients of a new authority alone, and has a certificate of a new authority itself."""
    old, new, theirs = certificates("old"), certificates("new"), certificates("theirs")
    front = tls_front(openai_server().port, theirs.server(clients=new.ca))
    text = manifest_text([f"https://127.0.0.1:{front.port}"])
    tls = TlsSettings(ca=old.ca, certificate=old.certificate, key=old.key)
    started = gateway(text, upstreams=UpstreamSettings(tls=tls))
    assert ask(started, chat("tokens=2")).status_code == 503
    old.ca.write_bytes(theirs.ca.read_bytes())
    old.certificate.write_bytes(new.certificate.read_bytes())  # half done: the key does not fit, nothing is used
    old.key.write_bytes(new.key.read_bytes())
    eventually(lambda: ask(started, chat("tokens=2")).status_code == 200, "the new files are used")


def test_files_that_are_not_usable_are_named(certificates: Any, tmp_path: Path) -> None:
    ours, others = certificates("ours"), certificates("others")
    missing, junk = tmp_path / "missing.pem", tmp_path / "junk.pem"
    junk.write_text("this is no certificate")
    key = trustme.CA().private_key_pem
    locked = tmp_path / "locked.key"
    locked.write_bytes(_encrypted(key.bytes()))
    for settings, shown in (
        (TlsSettings(ca=missing), f"{missing}: cannot be read: No such file or directory"),
        (TlsSettings(ca=junk), f"{junk}: contains no PEM certificates"),
        (
            TlsSettings(certificate=ours.certificate, key=others.key),
            f"{others.key}: not a certificate with its private key",
        ),
        (TlsSettings(certificate=junk, key=ours.key), f"{junk} and {ours.key}: not a certificate with its private key"),
        (TlsSettings(certificate=ours.certificate, key=locked), f"{locked}: the private key is encrypted"),
    ):
        with pytest.raises(CommandError) as caught:
            read_credentials(settings)
        assert shown in str(caught.value)


def _encrypted(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(pem, None)
    form, algorithm = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    return key.private_bytes(serialization.Encoding.PEM, form, algorithm)


@pytest.fixture
def tls_triton(
    certificates: Any, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> Iterator[tuple[int, Any, Any]]:
    """A real Triton without models that asks for certificates of `ours` and shows one of `theirs`."""
    ours, theirs = certificates("ours"), certificates("theirs")
    install, [port] = find_triton(), free_ports(1)
    repository = tmp_path / "models"
    repository.mkdir()
    libraries = link_libraries(install, tmp_path / "libraries")
    options = {
        "model-repository": repository,
        "model-control-mode": "explicit",
        "allow-http": "false",
        "allow-metrics": "false",
        "grpc-address": "127.0.0.1",
        "grpc-port": port,
        "grpc-use-ssl": "true",
        "grpc-use-ssl-mutual": "true",
        "grpc-server-cert": theirs.certificate,
        "grpc-server-key": theirs.key,
        "grpc-root-cert": ours.ca,
    }
    child = Child(
        name="Triton",
        command=[str(install.binary), *(f"--{name}={value}" for name, value in options.items())],
        log_path=tmp_path / "triton.log",
        env={**os.environ, **triton_environment(libraries)},
    )

    def is_ready() -> bool:
        assert child.exit_status() is None, child.log_tail()
        return "Started GRPCInferenceService" in (tmp_path / "triton.log").read_text()

    eventually(is_ready, "Triton's gRPC service", seen=child.log_tail)
    yield port, ours, theirs
    child.stop(timeout_s=PATIENCE_S)


async def test_triton_over_mutual_tls(tls_triton: tuple[int, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    port, ours, theirs = tls_triton

    def upstream(settings: TlsSettings, host: str = "127.0.0.1") -> EngineUpstream:
        tls = read_credentials(settings)
        return engine_in_triton(f"{host}:{port}", model="no_model", tls=tls)

    ours_and_theirs = TlsSettings(ca=theirs.ca, certificate=ours.certificate, key=ours.key)
    for host in ("127.0.0.1", "localhost"):  # the certificate is for both
        good = upstream(ours_and_theirs, host)
        with pytest.raises(UpstreamUnavailable, match="is not ready"):  # which only a connection tells
            await good.probe()
        await good.aclose()
    known = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: known("127.0.0.1", *rest, **more))
    elsewhere = upstream(ours_and_theirs, "other.example")
    with pytest.raises(UpstreamUnavailable, match="is unreachable") as caught:
        await elsewhere.stop_drafting()
    assert "Hostname Verification" in caught.value.detail
    await elsewhere.aclose()
    for settings, said in (
        (TlsSettings(ca=ours.ca, certificate=ours.certificate, key=ours.key), "CERTIFICATE_VERIFY_FAILED"),
        (TlsSettings(ca=theirs.ca), "failed to connect"),  # it breaks the connection off and gives no reason
    ):
        bad = upstream(settings)
        with pytest.raises(UpstreamUnavailable, match="is unreachable") as caught:
            await bad.stop_drafting()
        assert said in caught.value.detail
        await bad.aclose()


async def test_a_fifo_in_the_place_of_a_file_is_said_and_what_was_read_before_stays(
    certificates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = certificates("theirs")
    tls = UpstreamTls(TlsSettings(ca=theirs.ca))
    watching = asyncio.create_task(tls.watch(lambda: None, interval_s=0.01))
    replace_by_fifo(theirs.ca)
    await soon(lambda: "the last good files stay" in caplog.text, "a log line about the FIFO")
    watching.cancel()
    assert f"{theirs.ca}: cannot be read: it is a FIFO, a regular file is needed" in caplog.text
