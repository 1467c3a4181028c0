"""What a request came to: the one value that metrics and spans are made of."""

from __future__ import annotations

from typing import Protocol

import msgspec
from slipstream_core.types import Decision, Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Usage


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request. `status` is from a closed set: `ok`, `cancelled`, or an error's `error_type`.

    Times are seconds. `ttft_s` and `tpot_s` are None for answers that were not streamed, or had no second token.
    `finish_reasons` are those of the choices, as far as the gateway renders them itself. `server` is the address of the
    one that answered, empty where none did; of several that gave parts of one stream, the last. `resumed` has a cause
    for each time that a stream broke off and went on elsewhere. `key_id` is the public id of the caller's key.
    """

    pair: str
    model: str
    decision: Decision
    status: str
    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None
    usage: Usage
    finish_reasons: tuple[str, ...] = ()
    endpoint: Endpoint = Endpoint.CHAT
    server: str = ""
    resumed: tuple[str, ...] = ()
    request_id: str = ""
    key_id: str = ""


class Span(Protocol):
    """A request's span, from decision to last byte."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Trace context for the upstream."""
        ...

    def broke_off(self, *, cause: str, result: str, output_tokens: int) -> None:
        """A stream broke off after `output_tokens`; `result` says what became of it."""
        ...

    def end(self, outcome: Outcome) -> None: ...


class Tracer(Protocol):
    """Makes spans."""

    def span(self, request: GenerationRequest, *, request_id: str, traceparent: str | None) -> Span: ...


class Recorder:
    """What happens to requests, for metrics, the console and the audit log. Its methods must be quick and must not
    raise; each recorder defines those that it needs."""

    def record(self, outcome: Outcome) -> None:
        """A finished request."""

    def rejected(self, error: str) -> None:
        """A request that was refused before its decision; `error` is from a closed set."""

    def attempt_failed(self, *, server: str, error: str) -> None:
        """A server failed an attempt; the client may still get its answer from another one."""
