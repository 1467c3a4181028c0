"""Server-sent events, cut at event borders and otherwise unchanged but for their line ends (WHATWG HTML, 9.2)."""

from __future__ import annotations

import msgspec
from slipstream_core.errors import UpstreamFailed

DONE = b"[DONE]"
MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventSplitter:
    """Turns reads of any size into blocks of whole events. Events are not parsed. CRLF and CR become LF, the only line
    end that the readers of blocks know.

    A client therefore never gets half an event, and an error event may follow any block.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the event that has begun; joined once, at its end
        self._size = 0
        self._has_returned = False  # the last byte was a CR, to which a LF at the beginning of the next read belongs

    @property
    def tail(self) -> bytes:
        """Bytes after the last whole event."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> bytes:
        """The whole events that `data` completes, possibly b"". Raises `UpstreamFailed` for an event over the size
        limit."""
        if self._has_returned or b"\r" in data:
            data = self._with_line_feeds(data)
        cut = _last_border(data)
        if not cut and self._parts and data.startswith(b"\n") and self._parts[-1].endswith(b"\n"):
            cut = 1
        if not cut:
            self._keep(data)
            return b""
        block = data if cut == len(data) else data[:cut]
        if self._parts:
            block = b"".join([*self._parts, block])
            self._parts, self._size = [], 0
        self._keep(data[cut:])
        return block

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_EVENT_BYTES:
            raise UpstreamFailed(f"The upstream sent an event larger than {MAX_EVENT_BYTES} bytes.")

    def _with_line_feeds(self, data: bytes) -> bytes:
        if self._has_returned and data.startswith(b"\n"):
            data, self._has_returned = data[1:], False
        if data:
            self._has_returned = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _last_border(data: bytes) -> int:
    """The offset after the last blank line, 0 if there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0


def split_events(block: bytes) -> list[bytes]:
    """The events of a block of whole events, each with its closing blank line."""
    *events, rest = block.split(b"\n\n")
    whole = [event + b"\n\n" for event in events]
    return [*whole, rest] if rest else whole


def event_name(event: bytes) -> bytes:
    """The name of one event, empty if it has none."""
    names = [line[6:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"event:")]
    return names[-1] if names else b""


def event_data(event: bytes) -> bytes:
    """The joined `data:` lines of one event, without the blanks around each, which mean nothing in JSON."""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def is_whole_event(tail: bytes) -> bool:
    """Whether `tail`, with which a stream ended, is an event that only lacks its blank line: its data is `[DONE]` or
    JSON."""
    data = event_data(tail)
    try:
        return data == DONE or msgspec.json.decode(data, type=msgspec.Raw) is not None
    except msgspec.DecodeError:
        return False


def data_of_events(block: bytes) -> list[bytes]:
    """The data of each event of a block of whole events; fast for events of one line."""
    return [
        event[5:].strip() if event.startswith(b"data:") and b"\n" not in event else event_data(event)
        for event in block.split(b"\n\n")
        if event
    ]


def count_events(block: bytes) -> int:
    """The number of events in a block of whole events; JSON cannot contain a raw line feed."""
    return block.count(b"\n\n")
