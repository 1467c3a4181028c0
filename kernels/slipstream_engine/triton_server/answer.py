"""Answers one Triton request: responses made of tensors, or an error that starts with a stable code.

Runs inside Triton's stub process: `triton_python_backend_utils` can be imported only there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from slipstream_engine.contract.protocol import EngineFacts, Reply
from slipstream_engine.contract.types import Chunk, FinishReason

LARGE_RESPONSE_BYTES = 64 * 1024
"""Above this size, the last response and the final flag are sent separately, because the response may not fit into
shared memory while the flag always does."""


class Responses:
    """The responses to one request.

    Triton frees the data of a response sender with the final response. A later `is_cancelled` on that sender crashes
    the whole server, hence the lock and `_done`.

    A sender accepts nothing after the final response, even if sending that response failed.
    """

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._done = False

    @property
    def ended(self) -> bool:
        """Whether the final response was sent, or sending it failed."""
        return self._done

    def is_cancelled(self) -> bool:
        """Whether the client has disconnected. Takes a round trip to Triton."""
        with self._lock:
            return not self._done and bool(self._sender.is_cancelled())

    def _finish(self, response: Any) -> None:
        with self._lock:
            self._done = True  # also if sending fails, as Triton may have received it
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class TritonAnswer(Responses):
    """One request's answer. `stops` is the engine's number of `stop_drafting` calls when the request arrived.
    `prompt_ids` are token ids for the next response."""

    def __init__(self, *, request_id: str, sender: Any, outputs: frozenset[str], stops: int) -> None:
        super().__init__(sender)
        self.request_id = request_id
        self.stops = stops
        self.prompt_ids: tuple[int, ...] = ()
        self._outputs = outputs

    def send(self, item: Chunk | Reply) -> None:
        """Send part of the answer, possibly the last. If it raises, `fail` can still end a large answer."""
        if isinstance(item, Chunk) and item.finish_reason is FinishReason.ERROR:
            self.fail(item.error_code, item.error or "the engine gave no reason")
            return
        prompt_ids, self.prompt_ids = self.prompt_ids, ()
        response = _reply(item) if isinstance(item, Reply) else _response(item, self._outputs, prompt_ids)
        if not item.last:
            self._sender.send(response)
        elif _size_bytes(item) + 4 * len(prompt_ids) <= LARGE_RESPONSE_BYTES:
            self._finish(response)
        else:
            self._sender.send(response)
            self._finish(_reply(Reply(status=item.status, data=b"", last=True)) if isinstance(item, Reply) else None)

    def done(self) -> None:
        """Answer a control message: a response without tensors."""
        self._finish(pb_utils.InferenceResponse(output_tensors=[]))

    def send_facts(self, facts: EngineFacts) -> None:
        """Answer with the engine's facts, as JSON."""
        self._finish(pb_utils.InferenceResponse(output_tensors=[_bytes("engine_facts", msgspec.json.encode(facts))]))

    def fail(self, code: str, message: str) -> None:
        """End with an error. Its message starts with the stable `code`."""
        triton_code = {
            "internal": pb_utils.TritonError.INTERNAL,
            "overloaded": pb_utils.TritonError.UNAVAILABLE,
        }.get(code, pb_utils.TritonError.INVALID_ARG)
        error = pb_utils.TritonError(f"{code}: {message}", triton_code)
        self._finish(pb_utils.InferenceResponse(error=error))


def _size_bytes(item: Chunk | Reply) -> int:
    """Approximate size of the tensors of `item` in bytes."""
    if isinstance(item, Reply):
        return len(item.data)
    return 4 * (len(item.text) + len(item.token_ids) + len(item.margins or ()))


def _response(chunk: Chunk, outputs: frozenset[str], prompt_ids: Sequence[int]) -> Any:
    """The response with the tensors that the client requested, because each one costs time."""
    counts = chunk.counts
    values: dict[str, str | Sequence[int]] = {
        "text_output": chunk.text,
        "token_ids": chunk.token_ids,
        "finish_reason": chunk.finish_reason or "",
        "prompt_tokens": (counts.prompt_tokens,),
        "output_tokens": (counts.output_tokens,),
    }
    if counts.counted:
        values |= {
            "drafted": (counts.drafted,),
            "accepted": (counts.accepted,),
            "steps": (counts.steps,),
            "rejected_at": counts.rejected_at,
        }
    tensors = [_tensor(name, value) for name, value in values.items() if name in outputs]
    if chunk.last and counts.engine_s is not None and "engine_seconds" in outputs:
        tensors.append(pb_utils.Tensor("engine_seconds", np.array([counts.engine_s], dtype=np.float32)))
    if chunk.last and counts.draft and "draft" in outputs:
        tensors.append(_tensor("draft", counts.draft))
    if prompt_ids and "prompt_ids" in outputs:
        tensors.append(_tensor("prompt_ids", prompt_ids))
    if chunk.margins is not None and "margins" in outputs:
        tensors.append(pb_utils.Tensor("margins", np.array(chunk.margins, dtype=np.float32)))
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _reply(reply: Reply) -> Any:
    status = pb_utils.Tensor("openai_status", np.array([reply.status], dtype=np.int32))
    return pb_utils.InferenceResponse(output_tensors=[status, _bytes("openai_response", reply.data)])


def _tensor(name: str, value: str | Sequence[int]) -> Any:
    if isinstance(value, str):
        return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))
    return pb_utils.Tensor(name, np.array(value, dtype=np.int32))


def _bytes(name: str, data: bytes) -> Any:
    return pb_utils.Tensor(name, np.frombuffer(data, dtype=np.uint8))
