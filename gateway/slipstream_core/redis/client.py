"""The client of a Redis server, and its failures in one line without a credential."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from slipstream_core.errors import shorten


def client_of(url: str, *, connect_timeout_s: float) -> Redis:
    """A client that tries once, because its user decides on retries and deadlines. The client's own command timeout
    uses `asyncio.wait_for`, which loses cancellations before Python 3.12."""
    return Redis.from_url(
        url,
        protocol=2,
        socket_timeout=None,
        socket_connect_timeout=connect_timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def message_of(refusal: bytes | ResponseError) -> str:
    """The error message of Redis, its code first, without the command's arguments: those of AUTH are a credential."""
    words = refusal.decode(errors="replace") if isinstance(refusal, bytes) else str(refusal)
    return shorten(words.partition(", with args")[0])


def explained(error: Exception) -> tuple[str, str]:
    """The kind of a failure, and one line about it."""
    if isinstance(error, AuthenticationError):
        return "credentials", f"it refuses the credentials ({error})"
    if isinstance(error, BusyLoadingError):
        return "loading", "it is loading its data"
    if isinstance(error, TimeoutError | RedisTimeout):
        return "unreachable", "it does not respond in time"
    if isinstance(error, ResponseError):
        return type(error).__name__, f"it returned {message_of(error)}"
    if isinstance(error, RedisError | OSError):
        return "unreachable", str(error) or type(error).__name__
    return "unforeseen", f"an unexpected {type(error).__name__}"
