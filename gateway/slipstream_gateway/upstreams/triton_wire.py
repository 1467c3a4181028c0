"""The tensors of Slipstream's Triton model: requests in, responses out.

Raw tensor contents (KServe v2): little-endian numbers; BYTES elements are a 4-byte length and the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from slipstream_core.errors import UpstreamFailed
from slipstream_core.types import GenerationRequest, Message
from tritonclient.grpc import service_pb2

from slipstream_gateway.upstreams.base import Count, DraftStanding, Usage, engine_seconds

_encode = msgspec.json.encode
_INT32_MAX = 2**31 - 1
_INT32_BYTES = 4
_SMALLEST_TOP_P = 2.0**-126  # the smallest normal float32; a smaller value would arrive as 0, which the model refuses


CANCELLED = "cancelled"
"""The model's finish reason for cancelled work."""
FINISH_REASONS = frozenset({"", "stop", "length", CANCELLED})


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One response of the model, decoded. `finish_reason` is "" until the last."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    margins: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()


class RelayedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One response to a relayed request: bytes in OpenAI's form under an HTTP `status`, which is that of the whole
    answer. `last`: no more follow."""

    status: int
    data: bytes
    last: bool


_MOST_DRAFTS, _MOST_STANDINGS = 16, 256
_DraftName = Annotated[str, msgspec.Meta(max_length=256)]
_Fingerprint = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[\w.-]*\Z")]


class EngineFacts(msgspec.Struct, frozen=True):
    """A model's description of its engine. `openai`: it accepts whole OpenAI requests, too. `adaptive`: see `Job`,
    `fingerprint`: see `Upstream`. `prompt_ids`: it returns the token ids of prompts on request. `groups`: it
    learns about drafts for each group of requests. `drafts`: the names of its drafts if it has several, among which it
    chooses, and `draft_standings` what it knows of them. `context_tokens`: see `Upstream.models`. Older engines do not
    report the last seven."""

    engine: str
    max_draft_length: int
    openai: bool = False
    version: str = ""
    adaptive: bool = False
    fingerprint: _Fingerprint = ""
    prompt_ids: bool = False
    groups: bool = False
    drafts: Annotated[tuple[_DraftName, ...], msgspec.Meta(max_length=_MOST_DRAFTS)] = ()
    draft_standings: Annotated[tuple[DraftStanding, ...], msgspec.Meta(max_length=_MOST_STANDINGS)] = ()
    context_tokens: Count | None = None


def infer_request(
    request: GenerationRequest,
    *,
    model: str,
    draft_length: int,
    request_id: str,
    seed: int,
    adaptive: bool = False,
    margins: bool = False,
    prompt_ids: bool = False,
    group: str = "",
    resume_ids: Sequence[int] = (),
) -> service_pb2.ModelInferRequest:
    """The request message for one answer (choice) of `request`; `adaptive` and `margins` as in `Job`. `prompt_ids`
    requests the token ids of the prompt, which older engines refuse. `group` names alike requests, which older
    engines refuse. `resume_ids` are the tokens that the client
    already has: the model counts them towards the limit and in the usage, and its text continues after theirs."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    add = _Inputs(message)
    _add_prompt(add, request)
    add.numbers("draft_tokens", "INT32", "i", (draft_length,))
    if adaptive:  # an older model does not have the input
        add.numbers("adaptive", "BOOL", "?", (True,))
    add.numbers("stream", "BOOL", "?", (request.stream,))
    add.numbers("seed", "INT64", "q", (seed,))
    add.numbers("temperature", "FP32", "f", (request.temperature,))
    if request.max_tokens is not None:
        add.numbers("max_tokens", "INT32", "i", (min(request.max_tokens, _INT32_MAX),))
    if request.top_p < _SMALLEST_TOP_P:  # OpenAI allows 0: greedy decoding
        add.numbers("top_k", "INT32", "i", (1,))
    else:
        if request.top_p < 1.0:
            add.numbers("top_p", "FP32", "f", (request.top_p,))
        if request.top_k > 0:
            add.numbers("top_k", "INT32", "i", (request.top_k,))
    if request.stop:
        add.texts("stop", [text.encode() for text in request.stop])
    if margins:
        add.numbers("margins", "BOOL", "?", (True,))
    if prompt_ids:
        add.numbers("prompt_ids", "BOOL", "?", (True,))
    if group:
        add.texts("group", [group.encode()])
    if resume_ids:
        add.numbers("resume_ids", "INT32", "i", resume_ids)
    return message


STOP_DRAFTING, ENGINE_FACTS = "stop_drafting", "engine_facts"


def control_request(model: str, name: str) -> service_pb2.ModelInferRequest:
    """The control message `name` for `model`: `STOP_DRAFTING` makes all its requests continue plainly, `ENGINE_FACTS`
    requests the engine's capabilities."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    _Inputs(message).numbers(name, "BOOL", "?", (True,))
    return message


class _Inputs:
    """Appends input tensors to a request message."""

    def __init__(self, message: service_pb2.ModelInferRequest) -> None:
        self._message = message

    def numbers(self, name: str, datatype: str, code: str, values: Sequence[float]) -> None:
        self._add(name, datatype, len(values), struct.pack(f"<{len(values)}{code}", *values))

    def texts(self, name: str, values: Sequence[bytes]) -> None:
        packed = b"".join(struct.pack("<I", len(value)) + value for value in values)
        self._add(name, "BYTES", len(values), packed)

    def _add(self, name: str, datatype: str, length: int, raw: bytes) -> None:
        self._message.inputs.add(name=name, datatype=datatype, shape=[length])
        self._message.raw_input_contents.append(raw)


def _add_prompt(add: _Inputs, request: GenerationRequest) -> None:
    if request.messages:
        add.texts("messages", [_encode([_message(item) for item in request.messages])])
    elif isinstance(request.prompt, str):
        add.texts("text_input", [request.prompt.encode()])
    else:
        add.numbers("input_ids", "INT32", "i", request.prompt or ())


def _message(message: Message) -> dict[str, str]:
    """A role that chat templates know; OpenAI's `developer` is its newer name for `system`."""
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": message.content}


def read_response(response: service_pb2.ModelInferResponse, usage: Usage) -> Response:
    """Decodes one response and updates `usage`. Raises `UpstreamFailed` for a breach of the tensor contract."""
    outputs = _raw_outputs(response)
    try:
        usage.prompt_tokens = _count(outputs, "prompt_tokens")
        usage.output_tokens = usage.most_output_tokens = _count(outputs, "output_tokens")
        usage.counted = "drafted" in outputs  # the model leaves out numbers that its engine has not counted
        if usage.counted:
            usage.drafted, usage.accepted = _count(outputs, "drafted"), _count(outputs, "accepted")
            usage.steps = _count(outputs, "steps")
            usage.rejected_at = _counts(outputs.get("rejected_at", b""), "rejected_at")
        if "engine_seconds" in outputs:
            usage.engine_s = engine_seconds(struct.unpack("<f", outputs["engine_seconds"])[0])
        usage.draft = _text(outputs.get("draft", b""))
        return Response(
            text=_text(outputs["text_output"]),
            token_ids=_integers(outputs["token_ids"]),
            finish_reason=_finish_reason(outputs["finish_reason"]),
            margins=_floats(outputs["margins"]) if "margins" in outputs else (),
            prompt_ids=_integers(outputs["prompt_ids"]) if "prompt_ids" in outputs else (),
        )
    except (KeyError, ValueError, struct.error) as exc:
        raise _broken_contract(exc) from None


def read_relayed(response: service_pb2.ModelInferResponse) -> RelayedPart:
    """Decodes one response to a relayed request. Raises `UpstreamFailed` for a breach of the tensor contract."""
    outputs = _raw_outputs(response)
    try:
        return RelayedPart(
            status=_integer(outputs, "openai_status"),
            data=outputs["openai_response"],
            last=response.parameters["triton_final_response"].bool_param,
        )
    except (KeyError, struct.error) as exc:
        raise _broken_contract(exc) from None


def read_facts(response: service_pb2.ModelInferResponse) -> EngineFacts:
    """Decodes the response to `ENGINE_FACTS`. Raises `UpstreamFailed` for a breach of the tensor contract."""
    try:
        return msgspec.json.decode(_raw_outputs(response)[ENGINE_FACTS], type=EngineFacts)
    except (KeyError, ValueError, RecursionError) as exc:
        raise _broken_contract(exc) from None


def is_empty_final(response: service_pb2.ModelInferResponse) -> bool:
    """Whether a response only ends the stream."""
    return not response.outputs and response.parameters["triton_final_response"].bool_param


def _raw_outputs(response: service_pb2.ModelInferResponse) -> dict[str, bytes]:
    return {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=False)}


class _NoCount(ValueError):
    """An invalid count. The message contains numbers alone."""


def _broken_contract(exc: Exception) -> UpstreamFailed:
    """Names the missing or invalid tensor; other messages may quote the response."""
    if isinstance(exc, KeyError):
        detail = f"no tensor {exc}"
    elif isinstance(exc, _NoCount):
        detail = str(exc)
    else:
        detail = "a tensor has an unexpected size" if isinstance(exc, struct.error) else type(exc).__name__
    return UpstreamFailed("The inference server's response breaks the tensor contract.", detail=detail)


def _integer(outputs: Mapping[str, bytes], name: str) -> int:
    value: int = struct.unpack("<i", outputs[name])[0]
    return value


def _count(outputs: Mapping[str, bytes], name: str) -> int:
    if len(outputs[name]) != _INT32_BYTES:
        raise struct.error
    return _counts(outputs[name], name)[0]


def _counts(raw: bytes, name: str) -> tuple[int, ...]:
    counts = _integers(raw)
    if counts and min(counts) < 0:
        raise _NoCount(f"{name} has {min(counts)}, which is negative")
    return counts


def _integers(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // 4}i", raw)


def _floats(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def _finish_reason(raw: bytes) -> str:
    """One of a closed set, because it is recorded in spans. Raises `ValueError`."""
    reason = _text(raw)
    if reason not in FINISH_REASONS:
        raise ValueError("unknown finish reason")
    return reason


def _text(raw: bytes) -> str:
    return raw[4 : 4 + struct.unpack_from("<I", raw)[0]].decode() if raw else ""
