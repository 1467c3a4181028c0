"""Certificates of authorities that live as long as a test, and a TLS terminator before a plain server."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.support.network import Network


class Certificates:
    """PEM files of one authority in a folder."""

    def __init__(self, folder: Path, authority: trustme.CA | None = None) -> None:
        self.authority = authority or trustme.CA()
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.ca = folder / "ca.pem"
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def renew(self, issued: trustme.LeafCert | None = None) -> trustme.LeafCert:
        """A new certificate in the same files."""
        found = issued or self.authority.issue_cert("127.0.0.1", "localhost")
        self.certificate.write_bytes(b"".join(part.bytes() for part in found.cert_chain_pems))
        found.private_key_pem.write_to_path(str(self.key))
        return found

    def server(self, *, clients: Path | None = None) -> ssl.SSLContext:
        """A server's side; it asks for certificates of the authority in `clients`, where that is given."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
        context.load_cert_chain(self.certificate, self.key)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Callable[[str], Certificates]:
    return lambda name: Certificates(tmp_path / name)


@pytest.fixture
def tls_front(exit_stack: ExitStack) -> Callable[[int, ssl.SSLContext], Network]:
    """Starts TLS terminators before plain servers; all are stopped after the test."""
    return lambda to_port, tls: exit_stack.enter_context(Network(to_port, tls=tls))
