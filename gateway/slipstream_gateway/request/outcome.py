"""The outcome of a request: the one value from which metrics and spans are derived."""

from __future__ import annotations

from typing import Protocol

import msgspec
from slipstream_core.types import Decision, Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Usage


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request. `status` is from a closed set: `ok`, `cancelled`, or an error's `error_type`.

    Times are seconds. `ttft_s` and `tpot_s` are None for answers that were not streamed; `tpot_s` is None also for
    answers without a second token or with several choices. `finish_reasons` has those of the choices, as far as the
    gateway renders them itself. `server` is the address of the last server that was tried, empty if there was none.
    `resumed` has the cause of each interruption after which the stream resumed on another server. `key_id` is the
    public id of the caller's key.
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
    """A request's trace span, from decision to last byte."""

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The trace context headers for the upstream."""
        ...

    def broke_off(self, *, cause: str, result: str, output_tokens: int) -> None:
        """Records that a stream broke off after `output_tokens`; `result` is that of its resumption."""
        ...

    def end(self, outcome: Outcome) -> None: ...


class Tracer(Protocol):
    """Creates spans."""

    def span(self, request: GenerationRequest, *, request_id: str, traceparent: str | None) -> Span: ...


class Recorder:
    """Gets each finished call and each failure, for metrics, the console and the audit log. Its methods must be quick
    and must not raise; each recorder overrides those that it needs."""

    def record(self, outcome: Outcome) -> None:
        """Records a finished request."""

    def rejected(self, error: str) -> None:
        """Records a request that was refused before its decision; `error` is from a closed set."""

    def attempt_failed(self, *, server: str, error: str) -> None:
        """Records an attempt that a server failed; the client may still get its answer from another one."""
