"""The additions of Slipstream's contract to OpenAI's API: a draft length in the request, draft counts in the answer.

Request: `vllm_xargs.slipstream_draft_length`, `slipstream_class` and others. Answer: `metrics.speculative_decoding`,
in the body, in the final usage event, or in the response that ends a stream of `/v1/responses`. The client gets
OpenAI's fields instead, with Slipstream's beside them. vLLM counts one sequence only: its answer with several choices
has no counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from slipstream_core.errors import InvalidRequest, shorten
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Count, DraftLength, Job, Usage, engine_seconds
from slipstream_gateway.upstreams.client_usage import client_usage, seed_of
from slipstream_gateway.upstreams.openai_reading import ChatReader, Reader
from slipstream_gateway.upstreams.openai_wire import request_body
from slipstream_gateway.upstreams.responses_wire import ResponsesReader
from slipstream_gateway.upstreams.sse import event_data, split_events
from slipstream_gateway.upstreams.token_ids import request_fields

XARGS = "vllm_xargs"
DRAFT_LENGTH, ADAPTIVE, REQUEST_CLASS = "slipstream_draft_length", "slipstream_adaptive", "slipstream_class"
PROTECT = "slipstream_protect"
RESUME = "slipstream_resume_token_ids"
_OWN_KEYS = {
    DRAFT_LENGTH: "use the header 'x-slipstream-draft-length' for a draft length",
    ADAPTIVE: "remove it, the gateway decides whether the server chooses the number of draft tokens",
    PROTECT: "remove it, the policy of the pair decides which requests are protected",
    REQUEST_CLASS: "remove it, the gateway determines the class of each request",
    RESUME: "remove it, the gateway resumes answers itself",
}
_OWN_FIELDS = frozenset(f"{XARGS}.{name}" for name in (DRAFT_LENGTH, ADAPTIVE, PROTECT, REQUEST_CLASS))
_COUNTS = "speculative_decoding"
_NULL = b"null"
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


class Counts(msgspec.Struct, frozen=True):
    """`metrics.speculative_decoding`, as vLLM writes it. A step is a pass of the target that verified drafts;
    `acceptance_histogram[j]` counts the steps that accepted j draft tokens. The lists by step exist with vLLM's
    `--per-request-spec-decode-metrics detailed`. `engine_seconds` and `draft`, the name of the draft where the engine
    has several, are the contract's; older versions do not send them."""

    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    num_spec_steps: Count
    acceptance_histogram: tuple[Count, ...] = ()
    per_step_accepted: tuple[DraftLength, ...] | None = None
    per_step_drafted: tuple[DraftLength, ...] | None = None
    engine_seconds: Any = None
    draft: Annotated[str, msgspec.Meta(max_length=256)] = ""

    def fill(self, usage: Usage, *, output_tokens: int, draft_length: int, choices: int) -> None:
        """Writes them into `usage`; `output_tokens` are those of the `choices` that they count."""
        usage.drafted, usage.accepted = self.num_draft_tokens, self.num_accepted_draft_tokens
        usage.counted = True
        # Passes without drafts are not counted: each produced one token, like the prompt's pass.
        usage.steps = max(self.num_spec_steps, output_tokens - choices - self.num_accepted_draft_tokens)
        usage.rejected_at = self._rejected_at(draft_length)
        usage.engine_s, usage.draft = engine_seconds(self.engine_seconds), self.draft

    def _rejected_at(self, draft_length: int) -> tuple[int, ...]:
        """Steps by the position of their first rejected draft token; empty if there are drafts of unknown shorter
        lengths."""
        if self.per_step_accepted is not None and self.per_step_drafted is not None:
            rejected = [0] * max(self.per_step_drafted, default=0)
            for accepted, drafted in zip(self.per_step_accepted, self.per_step_drafted, strict=False):
                if accepted < drafted:
                    rejected[accepted] += 1
            return tuple(rejected)
        if self.num_draft_tokens == draft_length * self.num_spec_steps:
            return self.acceptance_histogram[:draft_length]
        return ()


class _Metrics(msgspec.Struct):
    speculative_decoding: Counts | None = None


class _Envelope(msgspec.Struct):
    metrics: _Metrics | None = None


class _Error(msgspec.Struct):
    param: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


def drafting_body(job: Job, *, resumed_ids: Sequence[int] = ()) -> bytes:
    """The body of `job` with its draft length and its class. Raises `InvalidRequest` if the client set them.
    `resumed_ids`: the tokens of the answer so far, which the server appends to the prompt."""
    xargs: dict[str, object] = {
        **client_xargs(job.request),
        **own_fields(job.draft_length, job.request_class, adaptive=job.adaptive, protected=job.protected),
    }
    if resumed_ids:
        xargs[RESUME] = resumed_ids
    fields = {XARGS: msgspec.Raw(_encode(xargs)), **request_fields(job)}
    if job.seeded and (seed := seed_of(job)) is not None:
        fields["seed"] = msgspec.Raw(b"%d" % seed)
    return request_body(job.request, job.model, fields)


def own_fields(
    draft_length: int, request_class: str, *, adaptive: bool, protected: bool = False
) -> dict[str, int | str]:
    """The plugin's fields of `vllm_xargs`."""
    fields: dict[str, int | str] = {DRAFT_LENGTH: draft_length}
    if adaptive:  # an older plugin refuses the fields
        fields[ADAPTIVE] = 1
    if protected:
        fields[PROTECT] = 1
    if request_class:
        fields[REQUEST_CLASS] = request_class
    return fields


def client_xargs(request: GenerationRequest) -> dict[str, msgspec.Raw]:
    """The client's own arguments for vLLM. Raises `InvalidRequest` if they are not an object, or contain a key of the
    gateway's."""
    if XARGS not in request.features:
        return {}
    raw = _decode_raw(request.raw)[XARGS]
    try:
        xargs = _decode_raw(raw)
    except msgspec.DecodeError:
        raise InvalidRequest(f"Invalid '{XARGS}': expected an object, got {_shown(raw)}.", param=XARGS) from None
    for name, advice in _OWN_KEYS.items():
        if name in xargs:
            field = f"{XARGS}.{name}"
            message = f"Invalid '{field}': reserved for the gateway, got {_shown(xargs[name])}; {advice}."
            raise InvalidRequest(message, param=field)
    return xargs


def _shown(raw: msgspec.Raw) -> str:
    return shorten(bytes(raw).decode())


def is_own_field(refusal: bytes) -> bool:
    """Whether the server refused a field that the gateway has set, not the client. The message is ignored, because it
    may quote the client."""
    return _blamed(refusal) in _OWN_FIELDS


def is_unknown_model(refusal: bytes) -> bool:
    """Whether the server refused the name of the model."""
    return _blamed(refusal) == "model"


def _blamed(refusal: bytes) -> str | None:
    """The field that an error of the server names."""
    try:
        error = _decode_refusal(refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if error is None else error.param


def has_counts(data: bytes) -> bool:
    """Whether `data` may hold counts."""
    return b'"speculative_decoding"' in data


def read_counts(data: bytes) -> Counts | None:
    """The counts in one JSON object of the server; None where there are none."""
    try:
        metrics = _decode_envelope(data).metrics
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return metrics.speculative_decoding if metrics is not None else None


def client_body(data: bytes, usage: Usage, job: Job) -> bytes:
    """One JSON object of the server for the client of `job`: with the drafts in `usage`, and without vLLM's counts."""
    fields = _decode_raw(data)
    if bytes(fields.get("usage", _NULL))[:1] == b"{":
        fields["usage"] = client_usage(fields["usage"], usage, job)
    metrics = bytes(fields.get("metrics", _NULL))
    if metrics != _NULL:
        others = {name: value for name, value in _decode_raw(metrics).items() if name != _COUNTS}
        if any(bytes(value) != _NULL for value in others.values()):
            fields["metrics"] = msgspec.Raw(_encode(others))
        else:
            del fields["metrics"]
    return _encode(fields)


def fill_part(usage: Usage, counts: Counts, job: Job) -> None:
    """Adds `counts`, which are of this server's part, to `usage`, which is of the whole answer."""
    before = job.committed.output_tokens if job.committed is not None else 0
    output_tokens, choices = usage.output_tokens - before, job.request.choices
    counts.fill(usage, output_tokens=output_tokens, draft_length=job.draft_length, choices=choices)


def count_body(body: bytes, usage: Usage, job: Job) -> bytes:
    """A whole body for the client of `job`; adds its counts to `usage`."""
    counts = read_counts(body) if has_counts(body) else None
    if counts is None:
        expect_counts(usage, job)
        return body
    fill_part(usage, counts, job)
    return client_body(body, usage, job)


def expect_counts(usage: Usage, job: Job) -> None:
    """Marks the drafts of `job` as uncounted until counts arrive. vLLM has none for an answer with several choices, and
    a proxy may remove them."""
    if job.draft_length:
        usage.counted = False


class EngineReader(ChatReader):
    """Reads chunks of chat and text completions, and the counts in the last of them."""

    def __init__(self, job: Job, usage: Usage) -> None:
        super().__init__(job, usage)
        self._job = job
        expect_counts(usage, job)

    def read(self, block: bytes) -> bytes:
        kept = super().read(block)
        if not has_counts(block):
            return kept
        for event in split_events(block):
            if has_counts(event) and (counts := read_counts(event_data(event))) is not None:
                fill_part(self._usage, counts, self._job)
        return b"".join([self._rewritten(event) for event in split_events(kept)])

    def _rewritten(self, event: bytes) -> bytes:
        data = event_data(event)
        if not has_counts(event) or read_counts(data) is None:
            return event  # also text that only quotes the name
        return b"data: " + client_body(data, self._usage, self._job) + b"\n\n"


class _Named(msgspec.Struct):
    type: str


_decode_named = msgspec.json.Decoder(_Named).decode


def engine_reader_of(job: Job, usage: Usage) -> Reader:
    """The reader for the stream that answers `job`, its counts included; it updates `usage`."""
    if job.request.endpoint is Endpoint.RESPONSES:
        return EngineResponsesReader(job, usage)
    return EngineReader(job, usage)


class EngineResponsesReader(ResponsesReader):
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
