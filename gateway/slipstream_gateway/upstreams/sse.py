"""Server-sent events, cut at event borders and otherwise unchanged (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from slipstream_core.errors import UpstreamFailed

MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventSplitter:
    """Turns reads of any size into blocks of whole events. Events are not parsed; both LF and CRLF are supported.

    A client therefore never gets half an event, and an error event may follow any block.
    """

    def __init__(self) -> None:
        self._tail = b""

    @property
    def tail(self) -> bytes:
        """Bytes after the last whole event."""
        return self._tail

    def feed(self, data: bytes) -> bytes:
        """The whole events that `data` completes, possibly b"". Raises `UpstreamFailed` for an event over the size
        limit."""
        if self._tail:
            data = self._tail + data
        cut = _last_border(data)
        if cut == len(data):
            self._tail = b""
            return data
        self._tail = data[cut:]
        if len(self._tail) > MAX_EVENT_BYTES:
            raise UpstreamFailed(f"The upstream sent an event larger than {MAX_EVENT_BYTES} bytes.")
        return data[:cut]


def _last_border(data: bytes) -> int:
    """The offset after the last blank line, 0 if there is none."""
    if data.endswith(b"\n\n"):
        return len(data)
    line_feeds = data.rfind(b"\n\n") + 2
    returns = data.rfind(b"\r\n\r\n") + 4
    return max(line_feeds if line_feeds > 1 else 0, returns if returns > 3 else 0)


def split_events(block: bytes) -> list[bytes]:
    """The events of a block of whole events, each with its closing blank line."""
    events = []
    while block:
        ends = [found + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (found := block.find(mark)) >= 0]
        end = min(ends, default=len(block))
        events.append(block[:end])
        block = block[end:]
    return events


def event_data(event: bytes) -> bytes:
    """The joined `data:` lines of one event."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def data_of_events(block: bytes) -> list[bytes]:
    """The data of each event of a block of whole events; fast for events of one line that end with LF."""
    if b"\r" in block:
        return [event_data(event) for event in split_events(block)]
    return [
        event[6:] if event.startswith(b"data: ") and b"\n" not in event else event_data(event)
        for event in block.split(b"\n\n")
        if event
    ]


def count_events(block: bytes) -> int:
    """The number of events in a block of whole events; JSON cannot contain a raw line feed."""
    return block.count(b"\n\n") + (block.count(b"\r\n\r\n") if b"\r" in block else 0)
