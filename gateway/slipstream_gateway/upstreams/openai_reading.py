"""Reads cost, failure and end from an OpenAI-compatible stream while it is forwarded.

A reader takes blocks of whole events in order and returns the events for the client. `ChatReader` reads the streams of
`/v1/chat/completions` and `/v1/completions`; `responses_wire.ResponsesReader` reads those of `/v1/responses`.
"""

from __future__ import annotations

import re
from typing import Protocol

from slipstream_core.types import Endpoint

from slipstream_gateway.upstreams.base import Job, Usage
from slipstream_gateway.upstreams.openai_continuation import Continued
from slipstream_gateway.upstreams.openai_wire import has_generated_text, has_usage, take_usage
from slipstream_gateway.upstreams.output_bound import most_tokens_of_events
from slipstream_gateway.upstreams.responses_wire import ResponsesReader
from slipstream_gateway.upstreams.sse import DONE, count_events
from slipstream_gateway.upstreams.wire_errors import failure_at, may_be_error

# A whole line, because generated text may contain the word. It begins with a literal, so that the search is fast.
_DONE = re.compile(rb"data:(?<![^\n]data:)[ \t]*\[DONE\][ \t]*\n")
_FINISH = re.compile(rb'"finish_reason": ?"(\w+)')
_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})


def finish_reasons_of(data: bytes) -> tuple[str, ...]:
    """The finish reasons in a body or in a block of events, from a closed set, because they are recorded in spans."""
    if b'"finish_reason":"' not in data and b'"finish_reason": "' not in data:
        return ()
    return tuple([known_reason(reason.decode()) for reason in _FINISH.findall(data)])


def known_reason(name: str) -> str:
    """A finish reason from a closed set, `other` for one beyond it: a server may write any text."""
    return name if name in _FINISH_REASONS else "other"


class Reader(Protocol):
    """`begun`: an event has arrived that another server would not send identically. `generating`: generated text has
    arrived. `done`: the stream has ended regularly. `finished`: all choices have their finish reason, so that the
    answer is whole if the body ends now. `failed`: the server reported a failure of its own, which `read` left out."""

    begun: bool
    generating: bool
    done: bool
    finished: bool
    failed: bool

    def read(self, block: bytes) -> bytes:
        """Updates the usage from one block of whole events; returns the events for the client. Raises
        `msgspec.DecodeError` or `UnicodeDecodeError` for a malformed event."""
        ...


def reader_of(job: Job, usage: Usage) -> Reader:
    """The reader for the stream that answers `job`; it updates `usage`."""
    if job.request.endpoint is Endpoint.RESPONSES:
        return ResponsesReader(usage)
    return ChatReader(job, usage)


class ChatReader:
    """Reads chunks of chat and text completions. Removes the usage event if the client did not request it."""

    def __init__(self, job: Job, usage: Usage) -> None:
        self.begun = True  # servers send the role with the first token
        self.generating = False
        self.done = False
        self.failed = False
        self.finished = False
        self._unfinished = job.request.choices
        self._usage = usage
        self._keep_usage = job.request.include_usage
        self._choices = job.request.choices
        self._bounds_output = job.bounds_output
        self._continued = Continued(job.committed) if job.committed is not None else None

    def read(self, block: bytes) -> bytes:
        usage = self._usage
        if self._bounds_output:
            usage.most_output_tokens += most_tokens_of_events(block)
        if not usage.exact:
            usage.output_tokens += count_events(block)
        if not self.generating:
            self.generating = has_generated_text(block)
        if b'"finish_reason":"' in block or b'"finish_reason": "' in block:
            self._unfinished -= len(_FINISH.findall(block))
            self.finished = self._unfinished <= 0
        if DONE in block and _DONE.search(block) is not None:
            self.done = True
            if not usage.exact:  # three events have no text: the role, the finish reason, [DONE]
                usage.output_tokens = max(usage.output_tokens - 3, 0)
        if may_be_error(block) and (at := failure_at(block)) is not None:
            block, self.failed = block[:at], True
        if has_usage(block):
            was_exact, usage.exact = usage.exact, False
            block = take_usage(block, usage, keep=self._keep_usage, choices=self._choices)
            if self._continued is not None and usage.exact:  # this block has a usage, of this part alone
                self._continued.count(usage)
            usage.exact = usage.exact or was_exact
        if self._continued is not None:
            block = self._continued.rewrite(block, usage)
        return block
