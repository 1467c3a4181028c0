"""The engine as a decoupled model of Triton Inference Server's Python backend.

Runs inside Triton's stub process, the only place where `triton_python_backend_utils` can be imported. Tensors
are described in `deploy/model_repository/slipstream/config.pbtxt`. Errors are Triton errors whose message
starts with a stable code: `invalid_request`, `context_length_exceeded`, `overloaded` or `internal`.

Threads: Triton calls `execute`, which only parses and submits; the engine's own thread runs steps; the outbox
sends responses; one more asks Triton which requests were cancelled: a round trip for each answer.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from slipstream_engine.errors import CheckpointError, EngineError, OverloadedError, RequestError
from slipstream_engine.service import EngineService
from slipstream_engine.settings import EngineSettings
from slipstream_engine.triton_inputs import (
    CONTROL_TENSOR,
    INPUT_TENSORS,
    Tensors,
    check_control,
    parse_request,
    prompt_bytes,
)
from slipstream_engine.triton_outbox import Delivery, Outbox
from slipstream_engine.types import Chunk, FinishReason

CANCEL_POLL_S = 0.02
LARGE_PROMPT_BYTES = 32 * 1024
"""Above this, a prompt is tokenized outside `execute`: it would hold up the requests behind it."""
MAX_INTAKE = 16
"""Large prompts that may wait to be tokenized."""


def settings_from_parameters(parameters: Mapping[str, str]) -> EngineSettings:
    """The engine that `config.pbtxt`'s parameters ask for; those not given keep their default.

    Raises:
        CheckpointError: a parameter is unknown to the engine or has a value that it cannot have.
    """
    unknown = sorted(set(parameters) - set(EngineSettings.__struct_fields__))
    if unknown:
        raise CheckpointError(f"config.pbtxt: unknown parameter {unknown[0]!r}")
    given = {name: value for name, value in parameters.items() if value != ""}
    try:
        return msgspec.convert(given, EngineSettings, strict=False)
    except msgspec.ValidationError as exc:
        raise CheckpointError(f"config.pbtxt: parameters: {exc}") from exc


class TritonPythonModel:
    """What Triton's stub looks for: `initialize`, `execute` and `finalize`."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine. An `EngineError` becomes the model's load failure, readable in Triton's log."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        try:
            self._service = EngineService.start(settings_from_parameters(parameters))
        except (EngineError, RuntimeError) as exc:  # PyTorch raises RuntimeError where memory or a device fails
            raise pb_utils.TritonModelException(str(exc)) from exc
        self._numbers = itertools.count(1)
        self._answers: dict[str, _Answer] = {}
        self._outbox: Outbox[_Answer] = Outbox(self._send)
        self._intake = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slipstream-intake")
        self._intake_room = threading.Semaphore(MAX_INTAKE)
        self._closing = threading.Event()
        self._cancel_watch = threading.Thread(target=self._watch_cancellation, daemon=True)
        self._cancel_watch.start()

    def execute(self, requests: list[Any]) -> None:
        """Take requests in; answers go out by their response senders. Returns at once."""
        for request in requests:
            tensors = {
                name: tensor.as_numpy()
                for name in (*INPUT_TENSORS, CONTROL_TENSOR)
                if (tensor := pb_utils.get_input_tensor_by_name(request, name)) is not None
            }
            answer = _Answer(
                request_id=str(next(self._numbers)),
                sender=request.get_response_sender(),
                outputs=frozenset(request.requested_output_names()),
                stops=self._service.stops,
            )
            if CONTROL_TENSOR in tensors:
                self._control(tensors, answer)
            elif prompt_bytes(tensors) <= LARGE_PROMPT_BYTES:
                self._take_in(tensors, answer)
            elif self._intake_room.acquire(blocking=False):
                self._intake.submit(self._take_in_large, tensors, answer)
            else:
                answer.fail("overloaded", f"{MAX_INTAKE} prompts of over {LARGE_PROMPT_BYTES} bytes are waiting")

    def finalize(self) -> None:
        """End running requests, send what is due, stop all threads."""
        self._closing.set()
        self._intake.shutdown()
        self._service.close()
        self._outbox.close()
        self._cancel_watch.join()

    def _control(self, tensors: Tensors, answer: _Answer) -> None:
        try:
            check_control(tensors)
        except RequestError as exc:
            answer.fail(exc.code, str(exc))
        else:
            self._service.stop_drafting()
            answer.done()

    def _take_in_large(self, tensors: Tensors, answer: _Answer) -> None:
        self._intake_room.release()
        if self._closing.is_set() or answer.is_cancelled():
            answer.fail("overloaded", "the server is shutting down, or the request was cancelled while it waited")
        else:
            self._take_in(tensors, answer)

    def _take_in(self, tensors: Tensors, answer: _Answer) -> None:
        try:
            request = parse_request(
                tensors,
                request_id=answer.request_id,
                tokenizer=self._service.tokenizer,
                context_tokens=self._service.context_tokens,
            )
            self._answers[answer.request_id] = answer
            delivery = Delivery(answer, stream=request.stream)
            self._service.submit(request.generation, partial(self._outbox.put, delivery), stops=answer.stops)
        except (RequestError, OverloadedError) as exc:
            self._answers.pop(answer.request_id, None)
            answer.fail(exc.code, str(exc))
        except Exception as exc:  # A request's top: whatever it hit must reach its client, not end the backend.
            self._answers.pop(answer.request_id, None)
            pb_utils.Logger.log_error(f"request {answer.request_id}: {exc!r}")
            answer.fail("internal", repr(exc))

    def _send(self, answer: _Answer, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._answers.pop(answer.request_id, None)
        try:
            answer.send(chunk)
        except Exception as exc:  # The outbox's top: a client that cannot be answered must not stop the others.
            pb_utils.Logger.log_error(f"request {answer.request_id}: sending failed: {exc!r}")
            self._service.cancel(answer.request_id)

    def _watch_cancellation(self) -> None:
        while not self._closing.wait(CANCEL_POLL_S):
            for answer in tuple(self._answers.values()):
                self._cancel_if_asked(answer)

    def _cancel_if_asked(self, answer: _Answer) -> None:
        try:
            if answer.is_cancelled():
                self._service.cancel(answer.request_id)
        except Exception as exc:  # one answer's state must not end the watch over all others
            pb_utils.Logger.log_error(f"request {answer.request_id}: asking whether it is cancelled failed: {exc!r}")


class _Answer:
    """The way back to one request's client. `stops`: how often drafting had been stopped when the request came.

    Triton frees what a response sender refers to with the final response; asking that sender afterwards
    whether it was cancelled brings the whole server down. Hence the lock, and `_done`.
    """

    def __init__(self, *, request_id: str, sender: Any, outputs: frozenset[str], stops: int) -> None:
        self.request_id = request_id
        self.stops = stops
        self._sender = sender
        self._outputs = outputs
        self._lock = threading.Lock()
        self._done = False

    def send(self, chunk: Chunk) -> None:
        """Send `chunk`, which may be the last."""
        if chunk.finish_reason is FinishReason.ERROR:
            self.fail("internal", chunk.error or "the engine gave no reason")
        elif chunk.finish_reason is None:
            self._sender.send(_response(chunk, self._outputs))
        else:
            self._finish(_response(chunk, self._outputs))

    def done(self) -> None:
        """End a control message: a response without tensors."""
        self._finish(pb_utils.InferenceResponse(output_tensors=[]))

    def fail(self, code: str, message: str) -> None:
        """End with an error. Its message starts with the stable `code`."""
        triton_code = {
            "internal": pb_utils.TritonError.INTERNAL,
            "overloaded": pb_utils.TritonError.UNAVAILABLE,
        }.get(code, pb_utils.TritonError.INVALID_ARG)
        error = pb_utils.TritonError(f"{code}: {message}", triton_code)
        self._finish(pb_utils.InferenceResponse(error=error))

    def is_cancelled(self) -> bool:
        """Whether its client has gone. A round trip to Triton."""
        with self._lock:
            return not self._done and bool(self._sender.is_cancelled())

    def _finish(self, response: Any) -> None:
        with self._lock:
            self._done = True
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _response(chunk: Chunk, outputs: frozenset[str]) -> Any:
    """The response with those tensors that the client asked for: each one costs. `margins` has an input of its own."""
    counts = chunk.counts
    values: dict[str, str | Sequence[int]] = {
        "text_output": chunk.text,
        "token_ids": chunk.token_ids,
        "finish_reason": chunk.finish_reason or "",
        "prompt_tokens": (counts.prompt_tokens,),
        "output_tokens": (counts.output_tokens,),
        "drafted": (counts.drafted,),
        "accepted": (counts.accepted,),
        "steps": (counts.steps,),
        "rejected_at": counts.rejected_at,
    }
    tensors = [_tensor(name, value) for name, value in values.items() if name in outputs]
    if chunk.margins is not None and "margins" in outputs:
        tensors.append(pb_utils.Tensor("margins", np.array(chunk.margins, dtype=np.float32)))
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _tensor(name: str, value: str | Sequence[int]) -> Any:
    if isinstance(value, str):
        return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))
    return pb_utils.Tensor(name, np.array(value, dtype=np.int32))
