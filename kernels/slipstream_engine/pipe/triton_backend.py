"""The pipe as a decoupled model of Triton's Python backend, loaded by `deploy/model_repository/slipstream`.

Runs inside Triton's stub process: `triton_python_backend_utils` can be imported only there. The parameter `application`
names a function, `module:name`. It takes the model's name and its other parameters, and returns the context manager of
an ASGI application.

Threads: `execute` only reads requests; the application runs on its event loop; one thread sends the pieces, another
polls Triton for cancelled requests and for its shutdown.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import triton_python_backend_utils as pb_utils

from slipstream_engine.errors import CheckpointError, EngineError, RequestError
from slipstream_engine.pipe.answer import PipedAnswer
from slipstream_engine.pipe.host import Host, Opened
from slipstream_engine.pipe.load_watch import LoadWatch
from slipstream_engine.pipe.messages import Piece, read_request
from slipstream_engine.pipe.metrics import RequestsGauge
from slipstream_engine.pipe.numpy_check import check_numpy
from slipstream_engine.pipe.response_sender import PendingPieces, ResponseSender
from slipstream_engine.pipe.shutdown import ShutdownWatch
from slipstream_engine.pipe.watchdog import TritonCalls, Watchdog

CANCEL_POLL_S = 0.02


class TritonPythonModel:
    """The class that Triton's stub loads."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the application. An `EngineError` becomes the model's load failure in Triton's log."""
        self._load_watch = LoadWatch(os.getppid())
        config = json.loads(args["model_config"])
        parameters = {name: each["string_value"] for name, each in config.get("parameters", {}).items()}
        try:
            check_numpy()
            self._host = Host(_opened(config["name"], parameters))
            self._host.start()
        except EngineError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        self._names = map(str, itertools.count())
        self._answers: dict[str, PipedAnswer] = {}
        self._gauge = RequestsGauge(config["name"])
        self._sending, self._polling = TritonCalls(), TritonCalls()
        self._responses: ResponseSender[PipedAnswer] = ResponseSender(self._send)
        self._closing = threading.Event()
        self._shutdown = ShutdownWatch.of_parent()
        self._watch = threading.Thread(target=self._watch_triton, daemon=True)
        self._watch.start()
        self._watchdog = Watchdog(self._host.loop, calls=(self._sending, self._polling))

    def execute(self, requests: list[Any]) -> None:
        """Pass requests to the application, which answers through their response senders. Returns at once."""
        self._load_watch.close()  # a model that gets requests has been loaded, also where Triton has no HTTP
        for request in requests:
            answer = PipedAnswer(next(self._names), request.get_response_sender())
            tensor = pb_utils.get_input_tensor_by_name(request, "request")
            try:
                piped = read_request(tensor.as_numpy().tobytes())
            except RequestError as exc:
                answer.fail(f"invalid_request: {exc}")
                continue
            answer.is_generation = piped.method == "POST" and piped.path.startswith("/v1/")
            self._answers[answer.name] = answer
            self._host.call(answer.name, piped, partial(self._responses.put, PendingPieces(answer)))

    def finalize(self) -> None:
        """End running requests, send the remaining pieces, and stop all threads."""
        self._load_watch.close()
        self._watchdog.close()
        self._closing.set()
        self._host.close()
        self._responses.close()
        self._watch.join()
        del self._gauge  # destroyed after `finalize`, it would crash this process

    def _send(self, answer: PipedAnswer, piece: Piece) -> None:
        if piece.last:
            self._answers.pop(answer.name, None)
        if answer.ended:  # by an earlier piece that could not be sent
            return
        try:
            with self._sending:
                answer.send(piece)
        except Exception as exc:  # top of the sending thread: one client's failure must not stop the others
            pb_utils.Logger.log_error(f"request {answer.name}: sending failed: {exc!r}")
            self._host.cancel(answer.name)
            self._end(answer)

    def _end(self, answer: PipedAnswer) -> None:
        """End an answer that lacks a piece, so that its client neither waits forever nor takes it for a whole one."""
        try:
            with self._sending:
                answer.fail("internal: a part of the response could not be sent")
        except Exception as exc:  # as in `_send`; nothing more can be done for this client
            pb_utils.Logger.log_error(f"request {answer.name}: sending the final error failed: {exc!r}")

    def _watch_triton(self) -> None:
        halted = False
        while not self._closing.wait(CANCEL_POLL_S):
            answers = tuple(self._answers.values())
            self._gauge.show(sum(answer.is_generation for answer in answers))
            for answer in answers:
                self._cancel_if_gone(answer)
            due = self._shutdown.is_due()
            if self._shutdown.has_begun:
                self._load_watch.close()
            if due and not halted:
                halted = True
                self._host.halt()

    def _cancel_if_gone(self, answer: PipedAnswer) -> None:
        try:
            with self._polling:
                is_cancelled = answer.is_cancelled()
            if is_cancelled:
                self._host.cancel(answer.name)
        except Exception as exc:  # one failing answer must not end the polling of the others
            pb_utils.Logger.log_error(f"request {answer.name}: polling failed: {exc!r}")


def _opened(name: str, parameters: Mapping[str, str]) -> Opened:
    """The application that `parameters` name. Raises `EngineError`."""
    own = {key: value for key, value in parameters.items() if not key.isupper()}  # those in capitals are Triton's
    module, _, function = own.pop("application", "").partition(":")
    try:
        opened: Opened = getattr(import_module(module), function)(name, own)
    except (ImportError, AttributeError, ValueError) as exc:
        raise CheckpointError(f"config.pbtxt: application {module}:{function} is missing: {exc}") from exc
    return opened
