"""Piped responses end for their clients: whole, in an error, or without room in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from slipstream_engine.pipe.messages import HALTED, UNFINISHED, Piece
from slipstream_engine.pipe.watchdog import TritonCalls

from tests.engine.pipe.conftest import Sender

LARGE = Piece(data=b"x" * 300_000, last=False)
LARGE_LAST = Piece(data=b"x" * 300_000, last=True)
SMALL_LAST = Piece(data=b"data: [DONE]\n\n", last=True)


class Model:
    """A Triton model with one answer."""

    def __init__(self, module: Any, room: int) -> None:
        self.sender = Sender(room)
        self.cancelled: list[str] = []
        self.answer = module.PipedAnswer("1", self.sender)
        self._model = module.TritonPythonModel()
        self._model._host = SimpleNamespace(cancel=self.cancelled.append)
        self._model._answers = {"1": self.answer}
        self._model._sending = TritonCalls()

    def send(self, *pieces: Piece) -> None:
        for piece in pieces:
            self._model._send(self.answer, piece)


@pytest.fixture
def model_with(load_backend: Callable[[str], Any]) -> Callable[[int], Model]:
    module = load_backend("slipstream_engine.pipe.triton_backend")
    return lambda room: Model(module, room)


@pytest.mark.parametrize("pieces", [(LARGE_LAST,), (LARGE, SMALL_LAST)], ids=["last", "middle"])
def test_a_piece_without_room_ends_the_response_in_an_error(
    model_with: Callable[[int], Model], pieces: tuple[Piece, ...]
) -> None:
    model = model_with(1_000)
    model.send(*pieces)
    [response] = model.sender.sent
    assert model.sender.ended
    assert response.error.message == "internal: a part of the response could not be sent"
    assert model.cancelled == ["1"]
    assert not model.answer.is_cancelled()


def test_a_large_last_piece_goes_out_before_the_final_flag(model_with: Callable[[int], Model]) -> None:
    model = model_with(1_000_000)
    model.send(LARGE_LAST)
    content, end = model.sender.sent
    assert content.output_tensors()[0].as_numpy().tobytes() == LARGE_LAST.data
    assert end is None
    assert model.sender.ended
    assert model.cancelled == []


@pytest.mark.parametrize("room", [1_000_000, 0], ids=["sent", "failed"])
def test_a_sender_is_asked_nothing_after_its_end(model_with: Callable[[int], Model], room: int) -> None:
    model = model_with(room)
    model.send(SMALL_LAST)
    assert model.answer.ended
    assert not model.answer.is_cancelled()


@pytest.mark.parametrize(("error", "code"), [(HALTED, "unavailable"), (UNFINISHED, "internal")])
@pytest.mark.parametrize("data", [b"", b"data: x\n\n"], ids=["alone", "after data"])
def test_an_error_follows_the_data_before_it(
    model_with: Callable[[int], Model], data: bytes, error: str, code: str
) -> None:
    model = model_with(1_000_000)
    model.send(Piece(data=data, last=True, error=error))
    *parts, end = model.sender.sent
    assert [part.output_tensors()[0].as_numpy().tobytes() for part in parts] == [data] * bool(data)
    assert (end.error.message, end.error.code) == (error, code)
    assert model.sender.ended
