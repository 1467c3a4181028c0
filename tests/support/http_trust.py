"""One TLS context for all HTTP clients with default settings, those of OpenAI's SDK included.

HTTPX and its successor httpx2, which the SDK uses, read some 150 CA certificates for each client, thus also for each
call such as `httpx.get`: 20 to 40 ms of processor time, against 0.2 ms for the rest of a call. Tests poll local servers
with thousands of such calls.
"""

from __future__ import annotations

import functools
import importlib
import os
import ssl
from collections.abc import Callable
from typing import Any

_LIBRARIES = ("httpx", "httpx2")


def share_default_context() -> None:
    """Lets the clients that are created in this process from now on share the context."""
    for library in _LIBRARIES:
        transports: Any = importlib.import_module(f"{library}._transports.default")
        transports.create_ssl_context = _reusing(transports.create_ssl_context)


def _reusing(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """`create`, which makes one context for all calls with default arguments."""

    @functools.cache
    def default(*paths: str | None) -> ssl.SSLContext:
        """The context for environment variables with the values `paths`."""
        return create()

    def create_or_reuse(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None or not trust_env:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        return default(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    return create_or_reuse
