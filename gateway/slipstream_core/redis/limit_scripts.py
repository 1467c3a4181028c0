"""The limits in Redis, as scripts, and a connection that runs many of them per exchange. Each script is atomic and
concerns one caller.

Both keys of a caller have its id as their hash tag, so that they are in one slot of a Redis Cluster. The clock is that
of Redis (`TIME`), because gateways with different clocks would use different minutes. Instants are µs since 2024, so
that a double represents them to a hundredth of one.

    slipstream:limits:{id}   hash: r, t: up to when the rates of requests and of tokens are used; at: when these were
                             written; back: by how much the clock was set back so far; day, usd: the spending of that
                             day (UTC), in billionths of a USD
    slipstream:leases:{id}   sorted set: taken places, one for each choice of a running request, by the instant at
                             which they expire unless renewed: those of a dead gateway expire

If the clock is set back, stored instants move back with it, so that no caller waits for the difference: `at` has the
earlier clock's time. Instants that gateways get do not change with it: they are those of a clock that was never set
back. No instant counts further ahead than the longest time that it may stand for. A corrected instant
is stored at once: from then on it comes closer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from hashlib import sha1
from typing import Any, NamedTuple

from redis.asyncio import Connection
from redis.exceptions import RedisError, ResponseError

from slipstream_core.rate_limits import US_PER_MINUTE, LimitName
from slipstream_core.redis.client import client_of

EPOCH_S = 1_704_067_200
REFUSED_BY = (LimitName.CONCURRENT, LimitName.BUDGET, LimitName.REQUESTS, LimitName.TOKENS)
LONGEST_DEBT_US = 86_400_000_000
"""Of tokens that were used beyond the charge of a request. A rate of requests is never used beyond a minute ahead."""


class Script:
    """A script's text and the name that Redis caches it under."""

    def __init__(self, text: str) -> None:
        self.text = _CLOCK + text
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def limits_key(key_id: str) -> str:
    return f"slipstream:limits:{{{key_id}}}"


def leases_key(key_id: str) -> str:
    return f"slipstream:leases:{{{key_id}}}"


_CLOCK = f"""
local time = redis.call('TIME')
local now = (tonumber(time[1]) - {EPOCH_S}) * 1e6 + tonumber(time[2])
local day = math.floor(tonumber(time[1]) / 86400)
local function text(number) return string.format('%.17g', number) end
local function rates(key)
  local state = redis.call('HMGET', key, 'r', 't', 'at', 'back')
  local r, t, at = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
  local back = math.max(at - now, 0)
  local all = tonumber(state[4] or 0) + back
  local debt = at > 0 and {LONGEST_DEBT_US} or {US_PER_MINUTE}
  local new_r, new_t = math.min(r - back, now + {US_PER_MINUTE}), math.min(t - back, now + debt)
  if new_r < r or new_t < t then
    redis.call('HSET', key, 'r', text(new_r), 't', text(new_t), 'at', text(now), 'back', text(all))
  end
  return new_r, new_t, all
end
"""

# KEYS: limits, leases. ARGV: requests per minute, tokens per minute, places, budget (each 0: no such limit), tokens and
# cost of this request, the number of places it takes, a lease's life in µs, then names of leases, one for each place.
# Returns {0 or the limit that refuses, as in REFUSED_BY, µs until it may be retried (-1: never), now, until when the
# two rates are used, day}.
ADMIT = Script(f"""
local rpm, tpm, most, budget = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local tokens, usd, places = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local state = redis.call('HMGET', KEYS[1], 'day', 'usd')
local spent = tonumber(state[1] or -1) == day and tonumber(state[2]) or 0
local r, t, back = rates(KEYS[1])
r, t = math.max(r, now), math.max(t, now)

local function refuse(which, wait)
  return {{which, wait < 0 and -1 or math.ceil(wait), now, math.ceil(r), math.ceil(t), day}}
end
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
  local latest = text(now + tonumber(ARGV[8]))
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. latest, '+inf')) do
    redis.call('ZADD', KEYS[2], latest, name)
  end
  if places > most then return refuse(1, -1) end
  if redis.call('ZCARD', KEYS[2]) + places > most then return refuse(1, 1e6) end
end
if budget > 0 and usd > budget then return refuse(2, -1) end
if budget > 0 and spent + usd > budget then return refuse(2, ((day + 1) * 86400 - tonumber(time[1])) * 1e6) end
local next_r = rpm > 0 and r + {US_PER_MINUTE} / rpm or r
local next_t = tpm > 0 and t + tokens * ({US_PER_MINUTE} / tpm) or t
if tokens > tpm and tpm > 0 then return refuse(4, -1) end
if next_r - now > {US_PER_MINUTE} then return refuse(3, next_r - now - {US_PER_MINUTE}) end
if next_t - now > {US_PER_MINUTE} then return refuse(4, next_t - now - {US_PER_MINUTE}) end

r, t = next_r, next_t
if most > 0 then
  for i = 9, #ARGV do redis.call('ZADD', KEYS[2], text(now + tonumber(ARGV[8])), ARGV[i]) end
  redis.call('PEXPIRE', KEYS[2], math.ceil(tonumber(ARGV[8]) / 1000))
end
redis.call('HSET', KEYS[1], 'r', text(r), 't', text(t), 'at', text(now), 'day', day, 'usd', text(spent + usd))
local life = budget > 0 and 172800000 or math.ceil((math.max(r, t) - now) / 1000) + 60000
if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIRE', KEYS[1], life) end
return {{0, 0, now + back, math.ceil(r + back), math.floor(t + back), day}}
""")

# KEYS: limits, leases. ARGV: tokens per minute (0: no such limit), tokens and cost beyond the charge (negative: less),
# until when the rate of tokens was used after the charge, the day of the charge, then names of leases that end. For the
# refund see `rate_limits.refund_us`.
SETTLE = Script(f"""
local tpm, tokens, usd = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 6, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
local state = redis.call('HMGET', KEYS[1], 'day', 'usd')
if tpm > 0 and tokens ~= 0 then
  local r, t, back = rates(KEYS[1])
  local more = tokens * ({US_PER_MINUTE} / tpm)
  if more > 0 then t = math.max(t, now) + more
  else t = t - math.max(0, math.min(-more, tonumber(ARGV[4]) - back - now)) end
  t = math.min(t, now + {LONGEST_DEBT_US})
  redis.call('HSET', KEYS[1], 'r', text(r), 't', text(t), 'at', text(now))
  local life = math.max(math.ceil((t - now) / 1000), 0) + 60000
  if redis.call('PTTL', KEYS[1]) < life then redis.call('PEXPIRE', KEYS[1], life) end
end
if usd > 0 or (usd < 0 and tonumber(ARGV[5]) == day) then
  local spent = tonumber(state[1] or -1) == day and tonumber(state[2]) or 0
  redis.call('HSET', KEYS[1], 'day', day, 'usd', text(math.max(spent + usd, 0)))
  redis.call('PEXPIRE', KEYS[1], 172800000)
end
return 1
""")

# KEYS: limits, leases. Returns {µs from now until which the two rates are used, taken places, spending of today}.
USAGE = Script("""
local state = redis.call('HMGET', KEYS[1], 'day', 'usd')
local spent = tonumber(state[1] or -1) == day and tonumber(state[2]) or 0
local r, t = rates(KEYS[1])
local function ahead(until_us) return math.ceil(math.max(until_us - now, 0)) end
return {ahead(r), ahead(t), redis.call('ZCOUNT', KEYS[2], '(' .. text(now), '+inf'), math.floor(spent)}
""")

# KEYS: limits, leases. ARGV: a lease's life in µs, then names of leases that are still held.
RENEW = Script("""
for i = 2, #ARGV do redis.call('ZADD', KEYS[2], text(now + tonumber(ARGV[1])), ARGV[i]) end
redis.call('PEXPIRE', KEYS[2], math.ceil(tonumber(ARGV[1]) / 1000))
return 1
""")


_CONNECT_S = 1.0
_CLOSE_S = 1.0


class Command(NamedTuple):
    """One script call for one caller."""

    script: Script
    key_id: str
    arguments: tuple[str | int | float, ...]


class ScriptLine:
    """One connection, for one task. Calls that arrive during an exchange must be queued by the caller.

    The connection is redis-py's, with its credentials, TLS and state. The work of its pool and pipeline around each
    command is left out and commands are packed here, because requests wait for them: it takes less than half of the CPU
    time (docs/decisions/packed-redis-scripts.md).
    """

    def __init__(self, url: str, scripts: Sequence[Script]) -> None:
        """`url`: from `parse_redis_url`. Nothing is sent before `connect`."""
        self._scripts = scripts
        self._pool = client_of(url, connect_timeout_s=_CONNECT_S).connection_pool
        self._connection: Connection | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

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
