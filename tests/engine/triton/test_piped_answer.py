"""A piped response that does not fit into shared memory ends in an error."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from slipstream_engine.pipe.messages import Piece

from tests.engine.triton.conftest import Sender

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
