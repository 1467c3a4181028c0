"""A dialect of OpenAI's API on the wire: the request without what the server refuses, and the draft counts of the
answer. What a dialect says is data (`slipstream_core.manifest.dialects`).

Counts are requested and read for answers that speculate, of one choice. The client gets them in the usage, as from
Slipstream's own engine, and does not see the fields that the gateway requested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta
from slipstream_core.manifest.dialects import CountsForm, Dialect
from slipstream_core.types import Endpoint

from slipstream_gateway.upstreams.base import Count, Job, Usage
from slipstream_gateway.upstreams.client_usage import client_usage
from slipstream_gateway.upstreams.openai_reading import ChatReader, Reader, reader_of
from slipstream_gateway.upstreams.openai_wire import has_usage, request_body
from slipstream_gateway.upstreams.sse import event_data, split_events
from slipstream_gateway.upstreams.token_ids import request_fields

_ON = msgspec.Raw(b"true")
_NO_CHOICES, _NULL = b"[]", b"null"
_EXTENSION, _DETAILS = "sglext", "spec_tokens_details"
_EXTENSION_MARK = b'"sglext"'
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


class _Counts(Protocol):
    def fill(self, usage: Usage, *, output_tokens: int, draft_length: int) -> None:
        """Writes the counts into `usage`; `output_tokens` are those of the same part of the answer."""
        ...


class _SpecTokensDetails(msgspec.Struct, frozen=True):
    """`CountsForm.SPEC_TOKENS_DETAILS`; `spec_correct_drafts_histogram[j]` counts the steps that accepted j tokens."""

    spec_num_correct_drafts: Count
    spec_num_proposed_drafts: Count
    spec_verify_ct: Count
    spec_correct_drafts_histogram: tuple[Count, ...] = ()

    def fill(self, usage: Usage, *, output_tokens: int, draft_length: int) -> None:
        usage.drafted, usage.accepted = self.spec_num_proposed_drafts, self.spec_num_correct_drafts
        usage.steps = self.spec_verify_ct
        usage.rejected_at = self.spec_correct_drafts_histogram[:draft_length]
        usage.counted = usage.accepted <= usage.drafted


class _Choice(msgspec.Struct, frozen=True):
    """`CountsForm.AVG_DECODED_TOKENS_PER_ITER`."""

    avg_decoded_tokens_per_iter: Annotated[float, Meta(ge=1.0, le=4097.0)]

    def fill(self, usage: Usage, *, output_tokens: int, draft_length: int) -> None:
        passes = min(max(round(output_tokens / self.avg_decoded_tokens_per_iter), 1), output_tokens)
        usage.steps = passes - 1  # the prompt's pass verifies nothing
        usage.accepted = output_tokens - passes
        usage.drafted = max(usage.steps * draft_length, usage.accepted)
        usage.counted = True


class _Timings(msgspec.Struct, frozen=True):
    """`CountsForm.TIMINGS`."""

    draft_n: Count = 0
    draft_n_accepted: Count = 0

    def fill(self, usage: Usage, *, output_tokens: int, draft_length: int) -> None:
        usage.drafted, usage.accepted = self.draft_n, self.draft_n_accepted
        usage.steps = max(output_tokens - 1 - usage.accepted, 0)  # the prompt's pass gives the first token
        usage.counted = usage.accepted <= usage.drafted


class _Extension(msgspec.Struct):
    spec_tokens_details: _SpecTokensDetails | None = None


class _WithExtension(msgspec.Struct):
    sglext: _Extension | None = None


class _WithChoices(msgspec.Struct):
    choices: list[_Choice] = []


class _WithTimings(msgspec.Struct):
    timings: _Timings | None = None


_decode_extension = msgspec.json.Decoder(_WithExtension).decode
_decode_choices = msgspec.json.Decoder(_WithChoices).decode
_decode_timings = msgspec.json.Decoder(_WithTimings).decode


def _of_extension(data: bytes) -> _Counts | None:
    extension = _decode_extension(data).sglext
    return extension.spec_tokens_details if extension is not None else None


def _of_choices(data: bytes) -> _Counts | None:
    choices = _decode_choices(data).choices
    return choices[0] if len(choices) == 1 else None


def _of_timings(data: bytes) -> _Counts | None:
    return _decode_timings(data).timings


class _Form(NamedTuple):
    """How one form of counts is read. `mark`: an object without it has no counts."""

    mark: bytes
    read: Callable[[bytes], _Counts | None]


_FORMS: Mapping[CountsForm, _Form] = {
    CountsForm.SPEC_TOKENS_DETAILS: _Form(b'"spec_tokens_details"', _of_extension),
    CountsForm.AVG_DECODED_TOKENS_PER_ITER: _Form(b'"avg_decoded_tokens_per_iter"', _of_choices),
    CountsForm.TIMINGS: _Form(b'"timings"', _of_timings),
}


def dialect_body(job: Job, dialect: Dialect) -> bytes:
    """The body of `job` for a server that speaks `dialect`."""
    fields = dict(request_fields(job))
    if (field := _counts_field(job, dialect)) is not None:
        fields[field] = _ON
    strict = frozenset() if job.request.endpoint is Endpoint.RESPONSES else dialect.refused_without_effect
    return request_body(job.request, job.model, fields, leave_out=strict)


def dialect_reader_of(job: Job, usage: Usage, dialect: Dialect) -> Reader:
    """The reader for the stream that answers `job`, its counts included; it updates `usage`."""
    if not _has_counts(job, dialect):
        return reader_of(job, usage)
    return _DialectReader(job, usage, dialect)


def count_dialect_body(body: bytes, usage: Usage, job: Job, dialect: Dialect) -> bytes:
    """A whole body for the client of `job`; adds its counts to `usage`."""
    if not _has_counts(job, dialect):
        return body
    usage.counted = False
    counts = _read(body, dialect) if usage.exact else None
    if counts is None:
        return body
    _fill_part(usage, counts, job)
    return _client_object(body, usage, job, dialect)


def _has_counts(job: Job, dialect: Dialect) -> bool:
    """Whether an answer of such a server should have counts: it speculates, and has one choice."""
    request = job.request
    return (
        dialect.counts is not None
        and job.draft_length > 0
        and request.choices == 1
        and request.endpoint is not Endpoint.RESPONSES
    )


def _counts_field(job: Job, dialect: Dialect) -> str | None:
    """The parameter by which the gateway requests the counts; None if it does not, because they need none, or because
    the client sets it itself."""
    field = dialect.counts_field
    return field if field not in job.request.features and _has_counts(job, dialect) else None


def _read(data: bytes, dialect: Dialect) -> _Counts | None:
    """The counts in one JSON object of the server; None where there are none."""
    if dialect.counts is None:
        return None
    form = _FORMS[dialect.counts]
    if form.mark not in data:
        return None
    try:
        return form.read(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _fill_part(usage: Usage, counts: _Counts, job: Job) -> None:
    """Adds `counts`, which are of this server's part, to `usage`, which is of the whole answer."""
    before = job.committed.output_tokens if job.committed is not None else 0
    counts.fill(usage, output_tokens=max(usage.output_tokens - before, 1), draft_length=job.draft_length)


def _client_object(data: bytes, usage: Usage, job: Job, dialect: Dialect) -> bytes:
    """One JSON object of the server for the client of `job`; empty if nothing of it is the client's."""
    fields = _decode_raw(data)
    if bytes(fields.get("usage", _NULL))[:1] == b"{":
        fields["usage"] = client_usage(fields["usage"], usage, job)
    if _EXTENSION in fields and _counts_field(job, dialect) is not None:
        others = {name: value for name, value in _decode_raw(fields.pop(_EXTENSION)).items() if name != _DETAILS}
        if others:
            fields[_EXTENSION] = msgspec.Raw(_encode(others))
        elif bytes(fields.get("choices", _NO_CHOICES)) == _NO_CHOICES and bytes(fields.get("usage", _NULL)) == _NULL:
            return b""
    return _encode(fields)


class _DialectReader(ChatReader):
    """Reads chunks of chat and text completions, and the counts in them. Counts come before or with the usage."""

    def __init__(self, job: Job, usage: Usage, dialect: Dialect) -> None:
        super().__init__(job, usage)
        usage.counted = False
        self._job = job
        self._dialect = dialect
        self._counts: _Counts | None = None

    def read(self, block: bytes) -> bytes:
        kept = super().read(block)
        self._counts = self._last_counts(block) or self._counts
        if self._counts is None:
            return kept
        if self._usage.exact:
            _fill_part(self._usage, self._counts, self._job)
        if not has_usage(kept) and _EXTENSION_MARK not in kept:
            return kept
        return b"".join([self._rewritten(event) for event in split_events(kept)])

    def _last_counts(self, block: bytes) -> _Counts | None:
        """The counts in the last event of `block` that has some: they are those of the answer so far."""
        found = (_read(event_data(event), self._dialect) for event in reversed(split_events(block)))
        return next((counts for counts in found if counts is not None), None)

    def _rewritten(self, event: bytes) -> bytes:
        if not has_usage(event) and _EXTENSION_MARK not in event:
            return event
        try:
            data = _client_object(event_data(event), self._usage, self._job, self._dialect)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return event
        return b"data: " + data + b"\n\n" if data else b""
