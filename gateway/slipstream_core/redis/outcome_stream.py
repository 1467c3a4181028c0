"""The streams of outcomes in Redis, one per pair: the fields of an entry, batches as msgpack, and the two scripts that
append and read.

An entry holds up to `BATCH` outcomes of one pair by one origin (one gateway process): one command for many outcomes.
Its fields: `v` the version of this format, `o` the origin, `n` the number of its first outcome among all that the
origin ever wrote to this stream, `b` the batch. Numbers start at 1 and rise along the stream, so that the last number
per origin tells a reader which outcomes are new. A batch is immutable once it has a number.

The commands are scripts, because they must be atomic inside Redis (6.2 or later). They are sent as text each time:
Redis caches a compiled script by its hash, and a restarted Redis needs no special handling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from slipstream_core.observation import Observation
from slipstream_core.types import Reason

VERSION = "1"
BATCH = 16
# Larger than any batch of ours (0.5 kB per outcome): a larger entry is not from a gateway.
LARGEST_BATCH_BYTES = 64 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Observation])


class Frame(NamedTuple):
    """A batch with the number of its first outcome."""

    first: int
    outcomes: int
    payload: bytes


def stream_key(pair: str) -> str:
    return f"slipstream:outcomes:{pair}"


def marker_key(pair: str, origin: str) -> str:
    """The key that holds the number of an origin's last batch in a pair's stream."""
    return f"slipstream:stored:{pair}:{origin}"


def encode(observations: Sequence[Observation], *, first: int) -> Frame | None:
    """None if the batch cannot be encoded: a value of a foreign type, or one beyond the format's range."""
    try:
        payload = _encoder.encode([_for_neighbours(seen) for seen in observations])
    except (TypeError, ValueError, OverflowError):
        return None
    return Frame(first, len(observations), payload) if len(payload) <= LARGEST_BATCH_BYTES else None


def _for_neighbours(seen: Observation) -> Observation:
    """`seen` with a reason that version 0.2 knows: it would drop the batch. Readers treat both reasons alike."""
    if seen.reason is not Reason.SPECULATION_MAY_PAY:
        return seen
    return msgspec.structs.replace(seen, reason=Reason.SPECULATION_PAYS)


def decode(payload: bytes, *, pair: str) -> list[Observation] | None:
    """The outcomes of a batch; None if it is not a batch of `pair`."""
    try:
        observations = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    if any(observation.subject.pair != pair for observation in observations):
        return None
    return observations or None


Command = tuple[str | bytes | int, ...]

# A stream without writers, and the number of an origin's last batch, expire.
_STREAM_LIFE_MS = 7 * 24 * 3600 * 1000
_MARKER_LIFE_MS = 3600 * 1000
# For one poll over all streams: about 1 MB.
_MOST_ENTRIES = 128

# KEYS: stream, marker. ARGV: version, origin, most entries, stream's life in ms, marker's life in ms, then for each
# batch its number and its bytes, in order. Returns how many are stored now and the error message of a refusal. A batch
# that is already stored (its acknowledgement was lost) is not stored again. The script stops at the first refusal: if a
# later batch were stored before an earlier one, readers would treat the earlier one as a duplicate.
_APPEND = """
local last = redis.pcall('GET', KEYS[2])
last = type(last) == 'string' and tonumber(last) or 0
local stored, refusal, newest = 0, nil, nil
for i = 6, #ARGV, 2 do
  if tonumber(ARGV[i]) > last then
    local reply = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*',
                              'v', ARGV[1], 'o', ARGV[2], 'n', ARGV[i], 'b', ARGV[i + 1])
    if type(reply) == 'table' and reply.err then refusal = reply.err break end
    newest = ARGV[i]
  end
  stored = stored + 1
end
if newest then
  redis.pcall('SET', KEYS[2], newest, 'PX', ARGV[5])
  redis.pcall('PEXPIRE', KEYS[1], ARGV[4])
end
return {stored, refusal}
"""

# KEYS: streams. ARGV: own origin, version, entries per stream, largest batch in bytes, '1' to check whether each stream
# is still the same one, then for each stream the id that was read last ('0-0': none). Returns for each stream either
# {error message} or {last id, 1 if there may be more, entries skipped, then origin, number and bytes of each batch}.
# Own batches are not returned; entries of another format are skipped. A stream has been replaced if it has entries up
# to the id that was read last, but not that one: Redis was restored with older data, or is empty with its clock set
# back. It is then read from its beginning.
_READ = """
local function read(key, after)
  if ARGV[5] == '1' and after ~= '0-0' then
    local before = redis.pcall('XRANGE', key, '-', after, 'COUNT', 1)
    if before.err then return {before.err} end
    if #before > 0 and #redis.call('XRANGE', key, after, after) == 0 then after = '0-0' end
  end
  local entries = redis.pcall('XRANGE', key, '(' .. after, '+', 'COUNT', ARGV[3])
  if entries.err then return {entries.err} end
  local reply, skipped = {after, #entries == tonumber(ARGV[3]) and 1 or 0, 0}, 0
  for _, entry in ipairs(entries) do
    local field = {}
    for i = 1, #entry[2], 2 do field[entry[2][i]] = entry[2][i + 1] end
    reply[1] = entry[1]
    if field.v ~= ARGV[2] or not (field.o and field.n and field.b) or #field.b > tonumber(ARGV[4])
       or #field.o > 64 or #field.n > 16 then
      skipped = skipped + 1
    elseif field.o ~= ARGV[1] then
      table.insert(reply, field.o)
      table.insert(reply, field.n)
      table.insert(reply, field.b)
    end
  end
  reply[3] = skipped
  return reply
end
local replies = {}
for i, key in ipairs(KEYS) do replies[i] = read(key, ARGV[5 + i]) end
return replies
"""


def append_command(pair: str, frames: Sequence[Frame], *, origin: str, most_entries: int) -> Command:
    """Adds batches to the stream of `pair`, oldest first."""
    keys = (stream_key(pair), marker_key(pair, origin))
    batches = [part for frame in frames for part in (frame.first, frame.payload)]
    return "EVAL", _APPEND, len(keys), *keys, VERSION, origin, most_entries, _STREAM_LIFE_MS, _MARKER_LIFE_MS, *batches


def read_command(pairs: Sequence[str], positions: Sequence[bytes], *, origin: str, check: bool) -> Command:
    """Reads the entries after `positions` in the streams of `pairs`, except those of `origin`."""
    keys = [stream_key(pair) for pair in pairs]
    count = max(2, _MOST_ENTRIES // len(keys))
    return "EVAL", _READ, len(keys), *keys, origin, VERSION, count, LARGEST_BATCH_BYTES, int(check), *positions
