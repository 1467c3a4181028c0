"""One connection to Redis for scripts, many per exchange.

The connection is redis-py's, with its credentials, TLS and state. The work of its pool and pipeline around each command
is left out and commands are packed here, because requests wait for them: it takes less than half of the CPU time
(`python -m tests.benchmarks.script_line`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.asyncio import Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from slipstream_core.redis.limit_scripts import Script, leases_key, limits_key

_CONNECT_S = 1.0
_CLOSE_S = 1.0


class Command(NamedTuple):
    """One script call for one caller."""

    script: Script
    key_id: str
    arguments: tuple[str | int | float, ...]


class ScriptLine:
    """For one task. Calls that arrive during an exchange must be queued by the caller."""

    def __init__(self, url: str, scripts: Sequence[Script]) -> None:
        """`url`: from `parse_redis_url`. Nothing is sent before `connect`."""
        self._scripts = scripts
        self._pool = Redis.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=_CONNECT_S, retry=Retry(NoBackoff(), 0)
        ).connection_pool
        self._connection: Connection | None = None

    async def connect(self) -> None:
        """Connects to Redis and loads the scripts. Raises `RedisError` or `OSError`."""
        await self.disconnect()
        connection = self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py types its methods in part
        await connection.connect()
        for words in (("PING",), *(("SCRIPT", "LOAD", script.text) for script in self._scripts)):
            await connection.send_command(*words)
            await connection.read_response()

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to `commands`, sent at once. Raises `RedisError` or `OSError`, also if Redis refuses one of them;
        the connection is then unusable."""
        connection = self._connection
        if connection is None:
            raise ConnectionError("not connected")
        await connection.send_packed_command(b"".join(map(_packed, commands)), check_health=False)
        replies, refusal = [], None
        for _ in commands:  # read all of them, or the next exchange would read the rest of this one
            try:
                replies.append(await connection.read_response())
            except ResponseError as exc:
                refusal = refusal or exc
        if refusal is not None:
            raise refusal
        return replies

    async def disconnect(self) -> None:
        """Never raises; `connect` may follow."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    await connection.disconnect()


def _packed(command: Command) -> bytes:
    """In RESP, an array of bulk strings (https://redis.io/docs/latest/develop/reference/protocol-spec)."""
    script, key_id, arguments = command
    parts = [b"*%d\r\n$7\r\nEVALSHA\r\n" % (5 + len(arguments))]
    for argument in (script.sha, 2, limits_key(key_id), leases_key(key_id), *arguments):
        text = str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)
