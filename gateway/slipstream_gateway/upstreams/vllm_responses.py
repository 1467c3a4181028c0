"""vLLM's counts in streams of `/v1/responses`: the plugin adds them to the response that ends the stream."""

from __future__ import annotations

import msgspec
from slipstream_core.types import Endpoint

from slipstream_gateway.upstreams.base import Job, Usage
from slipstream_gateway.upstreams.openai_reading import Reader
from slipstream_gateway.upstreams.responses_wire import ResponsesReader
from slipstream_gateway.upstreams.sse import event_data, split_events
from slipstream_gateway.upstreams.vllm_wire import VllmReader, client_body, fill_part, has_counts, read_counts


class _Named(msgspec.Struct):
    type: str


_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_named = msgspec.json.Decoder(_Named).decode


def vllm_reader_of(job: Job, usage: Usage) -> Reader:
    """The reader for the stream that answers `job`, its counts included; it updates `usage`."""
    if job.request.endpoint is Endpoint.RESPONSES:
        return VllmResponsesReader(job, usage)
    return VllmReader(job, usage)


class VllmResponsesReader(ResponsesReader):
    """Reads the events of one response, and the counts in the last of them."""

    def __init__(self, job: Job, usage: Usage) -> None:
        super().__init__(usage)
        self._job = job

    def read(self, block: bytes) -> bytes:
        kept = super().read(block)
        if not has_counts(kept):
            return kept
        return b"".join([self._rewritten(event) for event in split_events(kept)])

    def _rewritten(self, event: bytes) -> bytes:
        if not has_counts(event):
            return event
        fields = _decode_raw(event_data(event))
        response = bytes(fields.get("response", b""))
        counts = read_counts(response)
        if counts is None:
            return event
        fill_part(self._usage, counts, self._job)
        fields["response"] = msgspec.Raw(client_body(response, self._usage, self._job))
        name = _decode_named(event_data(event)).type.encode()
        return b"event: " + name + b"\ndata: " + msgspec.json.encode(fields) + b"\n\n"
