"""An engine as a decoupled model of Triton Inference Server's Python backend: the half that all engines share.

Runs inside Triton's stub process: `triton_python_backend_utils` can be imported only there. The tensors are described
in `deploy/model_repository/slipstream/config.pbtxt`. Errors are Triton errors whose message starts with a stable code:
`invalid_request`, `context_length_exceeded`, `overloaded` or `internal`.

Threads: Triton calls `execute`, which only parses and submits; the engine's own threads generate; the response
sender sends; one more thread polls Triton for cancelled requests, with one round trip per answer, and sets the gauge.
"""

from __future__ import annotations

import itertools
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from slipstream_engine.contract.protocol import OpenAiRequest, ServedEngine
from slipstream_engine.contract.types import merge_chunks
from slipstream_engine.errors import CheckpointError, EngineError, EngineFailedError, OverloadedError, RequestError
from slipstream_engine.settings import Settings, settings_from_text
from slipstream_engine.triton_server.answer import TritonAnswer
from slipstream_engine.triton_server.inputs import (
    ENGINE_FACTS,
    INPUT_TENSORS,
    MESSAGE_TENSORS,
    OPENAI_REQUEST,
    STOP_DRAFTING,
    Tensors,
    message_kind,
    parse_openai_request,
    parse_request,
    prompt_bytes,
)
from slipstream_engine.triton_server.metrics import RequestsGauge
from slipstream_engine.triton_server.response_sender import PendingItems, ResponseSender
from slipstream_engine.triton_server.watchdog import Watchdog

CANCEL_POLL_S = 0.02
LARGE_PROMPT_BYTES = 32 * 1024
"""Larger prompts are tokenized outside `execute`, where they would delay later requests."""
MAX_INTAKE = 16
"""Maximum number of large prompts that wait for tokenization."""

_NUMPY_PROBE = (1, -2, 2**30)

Engine = TypeVar("Engine", bound=ServedEngine)


def settings_from_parameters(parameters: Mapping[str, str], settings_type: type[Settings]) -> Settings:
    """The engine settings in the parameters of `config.pbtxt`. Missing parameters keep their default. Parameters in
    capitals are Triton's own.

    Raises:
        CheckpointError: a parameter is unknown or has an invalid value.
    """
    own = {name: value for name, value in parameters.items() if not name.isupper()}
    try:
        return settings_from_text(own, settings_type)
    except CheckpointError as exc:
        raise CheckpointError(f"config.pbtxt: {exc}") from exc


def check_numpy() -> None:
    """Raise `CheckpointError` if Triton's stub and Python use different memory layouts of numpy arrays.

    The stub reads and creates arrays with the memory layout of the numpy that it was built for. With another major
    version of numpy no error is raised: inputs have wrong numbers, and outputs are empty. The probe is passed to the
    stub by DLPack, which does not depend on numpy's layout, and is returned as an array that the stub made.
    """
    import torch  # late: `prepare` must run first

    received = pb_utils.Tensor.from_dlpack("probe", torch.tensor(_NUMPY_PROBE, dtype=torch.int32)).as_numpy()
    if received.dtype != np.int32 or received.tolist() != list(_NUMPY_PROBE):
        raise CheckpointError(
            f"this Triton's Python stub does not work with numpy {np.__version__}: it turns {list(_NUMPY_PROBE)} into "
            f"{received!r}; put numpy 1.26 first in the model's environment, or use a Triton that knows numpy 2"
        )


class TritonModel(ABC, Generic[Engine]):
    """The interface that Triton's stub calls: `initialize`, `execute` and `finalize`. Subclasses provide the engine."""

    def prepare(self) -> None:
        """Prepare the process, before any heavy import. Raises `EngineError` if the process is unsuitable."""

    @abstractmethod
    def start_engine(self, name: str, parameters: Mapping[str, str]) -> Engine:
        """Start the engine of the Triton model `name`.

        Raises:
            EngineError: the engine cannot be loaded.
        """

    def ask_openai(self, answer: TritonAnswer, request: OpenAiRequest) -> None:
        """Answer an OpenAI request. Raises `RequestError` if the engine does not support them."""
        raise RequestError(f"{OPENAI_REQUEST}: this engine takes tensors only")

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine. An `EngineError` becomes the model's load failure in Triton's log."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        try:
            self.prepare()
            check_numpy()
            self.engine = self.start_engine(config["name"], parameters)
        except (EngineError, RuntimeError) as exc:  # PyTorch raises RuntimeError where memory or a device fails
            raise pb_utils.TritonModelException(str(exc)) from exc
        self.responses: ResponseSender[TritonAnswer, Any] = ResponseSender(self._send)
        self._numbers = itertools.count(1)
        self._answers: dict[str, TritonAnswer] = {}
        self._requests = RequestsGauge(config["name"])
        self._intake = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slipstream-intake")
        self._intake_room = threading.Semaphore(MAX_INTAKE)
        self._closing = threading.Event()
        self._cancel_watch = threading.Thread(target=self._watch_cancellation, daemon=True)
        self._cancel_watch.start()
        self._watchdog = Watchdog()

    def execute(self, requests: list[Any]) -> None:
        """Submit requests, which are answered through their response senders. Returns at once."""
        for request in requests:
            tensors = {
                name: tensor.as_numpy()
                for name in (*INPUT_TENSORS, *MESSAGE_TENSORS)
                if (tensor := pb_utils.get_input_tensor_by_name(request, name)) is not None
            }
            answer = TritonAnswer(
                request_id=str(next(self._numbers)),
                sender=request.get_response_sender(),
                outputs=frozenset(request.requested_output_names()),
                stops=self.engine.stops,
            )
            if not tensors.keys().isdisjoint(MESSAGE_TENSORS):
                self._attempt(answer, partial(self._take_message, tensors, answer))
            elif prompt_bytes(tensors) <= LARGE_PROMPT_BYTES:
                self._attempt(answer, partial(self._take_in, tensors, answer))
            elif self._intake_room.acquire(blocking=False):
                self._intake.submit(self._take_in_large, tensors, answer)
            else:
                answer.fail("overloaded", f"{MAX_INTAKE} prompts of over {LARGE_PROMPT_BYTES} bytes are waiting")

    def finalize(self) -> None:
        """End running requests, send the remaining responses, and stop all threads."""
        self._watchdog.close()
        self._closing.set()
        self._intake.shutdown()
        self.engine.close()
        self.responses.close()
        self._cancel_watch.join()

    def _take_message(self, tensors: Tensors, answer: TritonAnswer) -> None:
        kind = message_kind(tensors)
        if kind == STOP_DRAFTING:
            self.engine.stop_drafting()
            answer.done()
        elif kind == ENGINE_FACTS:
            answer.send_facts(self.engine.facts())
        else:
            request = parse_openai_request(tensors)
            self._answers[answer.request_id] = answer
            self.ask_openai(answer, request)

    def _take_in_large(self, tensors: Tensors, answer: TritonAnswer) -> None:
        self._intake_room.release()
        if self._closing.is_set() or answer.is_cancelled():
            answer.fail("overloaded", "the server is shutting down, or the request was cancelled while it waited")
        else:
            self._attempt(answer, partial(self._take_in, tensors, answer))

    def _take_in(self, tensors: Tensors, answer: TritonAnswer) -> None:
        request = parse_request(
            tensors,
            request_id=answer.request_id,
            tokenizer=self.engine.tokenizer,
            context_tokens=self.engine.context_tokens,
        )
        if request.prompt_ids:
            answer.prompt_ids = request.generation.prompt_ids
        self._answers[answer.request_id] = answer
        pending = PendingItems(answer, merge_chunks, stream=request.stream)
        self.engine.submit(request.generation, partial(self.responses.put, pending), stops=answer.stops)

    def _attempt(self, answer: TritonAnswer, take: Callable[[], None]) -> None:
        """Call `take`, and answer with its error if it raises."""
        try:
            take()
        except (RequestError, OverloadedError, EngineFailedError) as exc:
            self._answers.pop(answer.request_id, None)
            answer.fail(exc.code, str(exc))
        except Exception as exc:  # Top of a request: the error must reach the client and not end the backend.
            self._answers.pop(answer.request_id, None)
            pb_utils.Logger.log_error(f"request {answer.request_id}: {exc!r}")
            answer.fail("internal", repr(exc))

    def _send(self, answer: TritonAnswer, item: Any) -> None:
        if item.last:
            self._answers.pop(answer.request_id, None)
        try:
            answer.send(item)
        except Exception as exc:  # Top of the sending thread: one client's failure must not stop the others.
            pb_utils.Logger.log_error(f"request {answer.request_id}: sending failed: {exc!r}")
            if item.last:
                self._end(answer)
            else:
                self.engine.cancel(answer.request_id)

    def _end(self, answer: TritonAnswer) -> None:
        """End an answer whose last response could not be sent, so that its client does not wait forever."""
        try:
            answer.fail("internal", "the last response could not be sent")
        except Exception as exc:  # as in `_send`; nothing more can be done for this client
            pb_utils.Logger.log_error(f"request {answer.request_id}: sending the final error failed: {exc!r}")

    def _watch_cancellation(self) -> None:
        while not self._closing.wait(CANCEL_POLL_S):
            self._requests.show(len(self._answers))
            for answer in tuple(self._answers.values()):
                self._cancel_if_asked(answer)

    def _cancel_if_asked(self, answer: TritonAnswer) -> None:
        try:
            if answer.is_cancelled():
                self.engine.cancel(answer.request_id)
        except Exception as exc:  # one failing answer must not end the polling of the others
            pb_utils.Logger.log_error(f"request {answer.request_id}: polling for cancellation failed: {exc!r}")
