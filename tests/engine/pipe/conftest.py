"""A scripted `triton_python_backend_utils`: the real module exists in Triton's stub process only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FINAL = 1
_MODULES = (
    "slipstream_engine.pipe.answer",
    "slipstream_engine.pipe.metrics",
    "slipstream_engine.pipe.numpy_check",
    "slipstream_engine.pipe.triton_backend",
)


class Sender:
    """A response sender as Triton's is: once it was given the final response it takes nothing any more, also where
    sending that failed. `room` is for how many bytes of tensors there is shared memory."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[Any] = []
        self.ended = False
        self._closed = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        if self._closed:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        self._closed = flags == FINAL
        if response is not None and sum(tensor.as_numpy().nbytes for tensor in response.output_tensors()) > self.room:
            raise RuntimeError("Failed to increase the shared memory pool size: No space left on device")
        self.sent.append(response)
        self.ended = self._closed

    def is_cancelled(self) -> bool:
        assert not self._closed, "this would bring Triton down"
        return False


@pytest.fixture
def load_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a module of the backend on the scripted one."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", _scripted())
    for name in _MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in _MODULES:
        sys.modules.pop(name, None)


def _scripted() -> ModuleType:
    class Error(SimpleNamespace):
        INTERNAL, UNAVAILABLE, INVALID_ARG = "internal", "unavailable", "invalid"

        def __init__(self, message: str, code: str) -> None:
            super().__init__(message=message, code=code)

    class Tensor(SimpleNamespace):
        def __init__(self, name: str, array: Any) -> None:
            super().__init__(name=name, as_numpy=lambda: array)

    class InferenceResponse(SimpleNamespace):
        def __init__(self, output_tensors: Any = (), error: Any = None) -> None:
            super().__init__(output_tensors=lambda: list(output_tensors), error=error)

    module = ModuleType("triton_python_backend_utils")
    module.__dict__.update(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        TritonError=Error,
        Tensor=Tensor,
        InferenceResponse=InferenceResponse,
        Logger=SimpleNamespace(log_error=lambda message: None),
    )
    return module
