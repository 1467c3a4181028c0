"""Renders tokens as OpenAI's JSON, as whole answers and as stream chunks, for upstreams that do not return it
themselves.

Chunks are assembled from prebuilt parts, so that a chunk costs one JSON string. The formats are those of
platform.openai.com/docs/api-reference/chat and /completions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Tokens, Usage

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


def usage_object(
    usage: Usage, *, draft_length: int, seed: int | None, resumed: Sequence[str] = ()
) -> dict[str, object]:
    """OpenAI's usage object. The figures of speculation are in OpenAI's own fields where these exist. Additional fields
    hold the seed (choice `i` is sampled with `choice_seed(seed, i)`), the draft length, the target's passes after the
    prompt, the number of passes by the position of the first rejected draft token, the engine's time in seconds, the
    draft where the engine has several, and a cause for each time that the answer moved to another server after a
    failure. Unknown values are null."""
    counted = usage.counted
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted if counted else None,
            "rejected_prediction_tokens": usage.drafted - usage.accepted if counted else None,
        },
        "slipstream": {
            "seed": seed,
            "draft_length": draft_length,
            "target_steps": usage.steps if counted else None,
            "rejected_at": usage.rejected_at if counted else None,
            "engine_seconds": usage.engine_s,
            "draft": usage.draft or None,
            "resumed": resumed,
        },
    }


def _identity(request: GenerationRequest, request_id: str, fingerprint: str, *, chunk: bool) -> dict[str, object]:
    chat = request.endpoint is Endpoint.CHAT
    kind = "chat.completion" + (".chunk" if chunk else "") if chat else "text_completion"
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": fingerprint or None,
    }


def whole_answer(
    request: GenerationRequest,
    request_id: str,
    pieces: Sequence[Tokens],
    usage: Usage,
    *,
    draft_length: int,
    fingerprint: str = "",
) -> bytes:
    """The body of a non-streamed answer; `pieces` has one final piece per choice. `fingerprint` is the upstream's."""
    choices: list[dict[str, object]] = []
    for piece in pieces:
        choice: dict[str, object] = {"index": piece.index}
        if request.endpoint is Endpoint.CHAT:
            choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        else:
            choice["text"] = piece.text
        choice["logprobs"] = None
        choice["finish_reason"] = piece.finish_reason
        choices.append(choice)
    answer = _identity(request, request_id, fingerprint, chunk=False)
    answer["choices"] = choices
    answer["usage"] = usage_object(usage, draft_length=draft_length, seed=request.seed)
    return _encode(answer)


class ChunkRenderer:
    """Renders the pieces of one stream. Every choice starts with its role (chat), and every stream ends with
    `[DONE]`."""

    def __init__(self, request: GenerationRequest, request_id: str, fingerprint: str = "") -> None:
        self._chat = request.endpoint is Endpoint.CHAT
        self._include_usage = request.include_usage
        self._seed = request.seed
        head = _encode(_identity(request, request_id, fingerprint, chunk=True))
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._tail = b"]" + (b',"usage":null' if request.include_usage else b"") + b"}\n\n"
        self._started: set[int] = set()

    def render(self, piece: Tokens) -> bytes:
        """The events of one piece: the role before a choice's first text, the finish reason after its last."""
        events = []
        if self._chat and piece.index not in self._started:
            self._started.add(piece.index)
            events.append(self._event(piece.index, b'{"role":"assistant","content":""}', b"null"))
        reason = _encode(piece.finish_reason)
        if piece.text:
            last = piece.finish_reason is not None and not self._chat
            events.append(self._event(piece.index, self._delta(piece.text), reason if last else b"null"))
        if piece.finish_reason is not None and (self._chat or not piece.text):
            events.append(self._event(piece.index, self._delta(""), reason))
        return b"".join(events)

    def end(self, usage: Usage, draft_length: int, resumed: Sequence[str] = ()) -> bytes:
        """The usage event, if requested, and the end of the stream."""
        if not self._include_usage:
            return DONE
        rendered = usage_object(usage, draft_length=draft_length, seed=self._seed, resumed=resumed)
        return self._head + b'],"usage":' + _encode(rendered) + b"}\n\n" + DONE

    def _delta(self, text: str) -> bytes:
        if not self._chat:
            return _encode(text)
        return b'{"content":' + _encode(text) + b"}" if text else b"{}"

    def _event(self, index: int, delta: bytes, reason: bytes) -> bytes:
        key = b'"delta":' if self._chat else b'"text":'
        return b"%s{%s%s,%s%d,%s%s}%s" % (
            self._head,
            key,
            delta,
            b'"index":',
            index,
            b'"logprobs":null,"finish_reason":',
            reason,
            self._tail,
        )
