"""The public keys of a token issuer (RFC 7517), fetched in the background: no request waits for them.

PyJWT's `PyJWKClient` is not used: it fetches while a request waits, reads answers of any size, and drops its keys when
an issuer fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.network_errors import describe_network_error

from slipstream_gateway.access.records import check_location

FETCH_S = 5.0
URL_REFRESH_S = 300.0
FILE_REFRESH_S = 1.0
RETRY_S = 5.0
LIFE_S = 24 * 3600.0
MAX_BYTES = 1024 * 1024
_MIN_RSA_BITS = 2048
_PUBLIC = frozenset({"RSA", "EC", "OKP"})
_log = logging.getLogger(__name__)


class IssuerKey(NamedTuple):
    """A key for verifying signatures. `algorithm` is the only one that it may be used with; None: any of its type."""

    key: Any
    algorithm: str | None


class Jwks:
    """The keys at one location: an https URL, http on the loopback, or a file. Redirects are not followed, and
    locations in tokens are ignored.

    If the location fails, the last keys stay valid for `LIFE_S`. `run` refreshes them until cancelled; an unknown key
    id causes an early refresh, at most once per `RETRY_S`.
    """

    def __init__(self, location: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.location = location
        self.generation = 0
        self._is_url = check_location(location)
        self._clock = clock
        self._keys: Mapping[str | None, IssuerKey] = {}
        self._read_s = float("-inf")
        self._wanted = asyncio.Event()
        self._last_failure = ""
        self._files = FileThread(timeout_s=FETCH_S)

    @property
    def is_ready(self) -> bool:
        return self._clock() - self._read_s < LIFE_S

    def find(self, kid: str | None) -> IssuerKey | None:
        """The key `kid`, or the only key if `kid` is None. An unknown key requests a refresh and returns None."""
        key = self._keys.get(kid)
        if key is None and kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key is None:
            self._wanted.set()
        return key

    async def run(self) -> None:
        while True:
            read = await self.refresh()
            pause_s = (URL_REFRESH_S if self._is_url else FILE_REFRESH_S) if read else RETRY_S
            await asyncio.sleep(min(RETRY_S, pause_s))  # whatever the number of unknown key ids
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), max(pause_s - RETRY_S, 0.0))

    async def refresh(self) -> bool:
        """Reads the location once. True on success."""
        try:
            keys = parse_keys(await (self._fetch() if self._is_url else self._files.arun(self._read)))
        except ValueError as exc:
            self._warn(str(exc))
            return False
        except Exception as exc:  # the top of a task: no answer of an issuer may end it
            self._warn(describe_network_error(_reason(exc)))
            return False
        if {kid: _identity(key) for kid, key in keys.items()} != {k: _identity(v) for k, v in self._keys.items()}:
            self._keys = keys
            self.generation += 1
        self._read_s = self._clock()
        self._last_failure = ""
        return True

    def _read(self) -> bytes:
        return read_regular(Path(self.location), max_bytes=MAX_BYTES)

    async def _fetch(self) -> bytes:
        """Raises `ValueError` for a bad answer, `httpx.HTTPError` or `TimeoutError` for none."""
        data = bytearray()
        async with (
            asyncio.timeout(FETCH_S),
            httpx.AsyncClient(verify=await asyncio.to_thread(_trusted), timeout=FETCH_S, trust_env=False) as client,
            client.stream("GET", self.location, headers={"accept-encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"it answers {response.status_code}")
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > MAX_BYTES:
                    raise ValueError(f"it answers more than {MAX_BYTES} bytes")
        return bytes(data)

    def _warn(self, why: str) -> None:
        if why != self._last_failure:
            self._last_failure = why
            _log.warning("the keys of the token issuer could not be read from %s: %s", self.location, why)


def _reason(error: BaseException) -> BaseException:
    """The innermost error of the operating system or TLS behind `error`, if there is one. httpcore drops causes, so
    contexts are followed too."""
    found, inner = error, error.__cause__ or error.__context__
    while inner is not None:
        found = inner if isinstance(inner, OSError) else found
        inner = inner.__cause__ or inner.__context__
    return found


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The system's certificate authorities. They take 25 ms of CPU to load: once per process, in a thread."""
    return ssl.create_default_context()


def parse_keys(data: bytes) -> dict[str | None, IssuerKey]:
    """The usable keys of a JWK set. Raises `ValueError` if it is not a JWK set or has no usable key."""
    found: dict[str | None, IssuerKey] = {}
    try:
        entries = json.loads(data)["keys"]
        for entry in entries:
            if entry.get("kty") in _PUBLIC and entry.get("use", "sig") == "sig" and "d" not in entry:
                with contextlib.suppress(jwt.PyJWTError):  # a key type that this version does not support
                    key = jwt.PyJWK(entry).key
                    if not isinstance(key, RSAPublicKey) or key.key_size >= _MIN_RSA_BITS:
                        found[entry.get("kid")] = IssuerKey(key, entry.get("alg"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ValueError(f"not a JWK set ({type(exc).__name__})") from None
    if not found:
        raise ValueError("it contains no public key for signatures")
    return found


def _identity(key: IssuerKey) -> tuple[object, ...]:
    public = key.key
    return (public.public_numbers() if hasattr(public, "public_numbers") else public.public_bytes_raw(), key.algorithm)
