"""TLS to upstreams: the trusted CAs and the gateway's client certificate.

The files are options of the process, not of the manifest: an author of a manifest must not be able to make the gateway
present a certificate to a server of their choice. The files are read whole, validated together, and held in memory, so
that a half-finished rotation is never used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from slipstream_core.errors import CommandError, named_os_errors
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.settings import TlsSettings

_log = logging.getLogger(__name__)
_LOOK_S = 2.0
_MAX_BYTES = 16 * 1024 * 1024


class Credentials:
    """The content of the files at one moment. `ca`, `certificate` and `key` are PEM; None: the client library's default
    CAs, no certificate."""

    def __init__(
        self, *, ca: bytes | None, certificate: bytes | None, key: bytes | None, context: ssl.SSLContext
    ) -> None:
        self.ca = ca
        self.certificate = certificate
        self.key = key
        self.context = context
        parts = (hashlib.sha256(part or b"").digest() for part in (ca, certificate, key))
        self.fingerprint = hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def read_credentials(settings: TlsSettings) -> Credentials:
    """The present content of the files. Raises `CommandError`, which names the file, if they are unusable or cannot be
    read in time."""
    if not (shown := _shown(settings)):  # the system's certificates alone, which no settings name
        return _read_credentials(settings)
    with named_os_errors(f"{shown}: cannot be read"):
        return FileThread().run(lambda: _read_credentials(settings))


def _read_credentials(settings: TlsSettings) -> Credentials:
    ca, certificate, key = (_read(path) for path in (settings.ca, settings.certificate, settings.key))
    context = ssl.create_default_context() if ca is None else _trusting(ca, settings.ca)
    if certificate is not None and key is not None:
        _identify(context, certificate, key, shown=f"{settings.certificate} and {settings.key}")
    return Credentials(ca=ca, certificate=certificate, key=key, context=context)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    with named_os_errors(f"{path}: cannot be read"):
        return read_regular(path, max_bytes=_MAX_BYTES)


def _trusting(ca: bytes, path: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as exc:
        raise CommandError(f"{path}: contains no PEM certificates.") from exc


def _identify(context: ssl.SSLContext, certificate: bytes, key: bytes, *, shown: str) -> None:
    """OpenSSL loads these from files only, so the in-memory content gets a file name."""
    descriptors = []
    try:
        for data in (certificate, key):
            descriptors.append(descriptor := os.memfd_create("tls"))
            os.write(descriptor, data)
        held = [f"/proc/self/fd/{descriptor}" for descriptor in descriptors]
        context.load_cert_chain(held[0], held[1], password=_no_password)
    except ssl.SSLError as exc:
        reason = exc.reason.replace("_", " ").lower() if exc.reason else "not PEM"
        raise CommandError(f"{shown}: not a certificate with its private key ({reason}).") from exc
    except _Encrypted as exc:
        raise CommandError(f"{shown}: the private key is encrypted; use one without a password.") from exc
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted


class UpstreamTls:
    """The credentials of new connections, reloaded while `watch` runs."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises `CommandError` if the files are unusable."""
        self._settings = settings
        self._files = FileThread()
        self.current = read_credentials(settings)

    def fingerprint(self) -> str:
        """Changes with every change of a file."""
        return self.current.fingerprint

    async def watch(self, on_change: Callable[[], None], *, interval_s: float = _LOOK_S) -> None:
        """Polls the files every `interval_s` until cancelled. While they are unusable, the last good ones stay in
        use."""
        if (self._settings.ca, self._settings.certificate) == (None, None):
            return
        last_problem = ""
        while True:
            await asyncio.sleep(interval_s)
            try:
                with named_os_errors(f"{_shown(self._settings)}: cannot be read"):
                    found = await self._files.arun(lambda: _read_credentials(self._settings))
            except CommandError as exc:
                if str(exc) != last_problem:  # once per problem, not at every poll
                    _log.error("TLS to upstreams: %s; the last good files stay in use", exc)
                last_problem = str(exc)
                continue
            last_problem = ""
            if found.fingerprint != self.current.fingerprint:
                self.current = found
                _log.info("TLS to upstreams: the files have changed; new connections use them")
                on_change()


def _shown(settings: TlsSettings) -> str:
    return ", ".join(str(path) for path in (settings.ca, settings.certificate, settings.key) if path is not None)
