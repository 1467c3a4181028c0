"""Answers one Triton request: responses with pieces of bytes, or an error that starts with a stable code.

Runs inside Triton's stub process: `triton_python_backend_utils` can be imported only there.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from slipstream_engine.pipe.messages import Piece

LARGE_RESPONSE_BYTES = 64 * 1024
"""Above this size, the last response and the final flag are sent separately, because the response may not fit into
shared memory while the flag always does."""


class PipedAnswer:
    """The responses to one request. `name` is unique in the model. `is_generation`: the request is for an answer of the
    model, not a control route's.

    Triton frees the data of a response sender with the final response. A later `is_cancelled` on that sender crashes
    the whole server, hence the lock and `_done`.

    A sender accepts nothing after the final response, even if sending that response failed.
    """

    def __init__(self, name: str, sender: Any) -> None:
        self.name = name
        self.is_generation = False
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

    def send(self, piece: Piece) -> None:
        """Send part of the answer, possibly the last. If it raises, `fail` can still end the answer."""
        if piece.error is not None:
            if piece.data:
                self._sender.send(_response(piece.data))
            self.fail(piece.error)
        elif not piece.last:
            self._sender.send(_response(piece.data))
        elif len(piece.data) <= LARGE_RESPONSE_BYTES:
            self._finish(_response(piece.data))
        else:
            self._sender.send(_response(piece.data))
            self._finish(None)

    def fail(self, error: str) -> None:
        """End with an error. `error` begins with its code."""
        code, _, _ = error.partition(":")
        triton_code = {
            "halted": pb_utils.TritonError.UNAVAILABLE,
            "invalid_request": pb_utils.TritonError.INVALID_ARG,
        }.get(code, pb_utils.TritonError.INTERNAL)
        self._finish(pb_utils.InferenceResponse(error=pb_utils.TritonError(error, triton_code)))

    def _finish(self, response: Any) -> None:
        with self._lock:
            self._done = True  # also if sending fails, as Triton may have received it
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _response(data: bytes) -> Any:
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("response", np.frombuffer(data, dtype=np.uint8))])
