"""The response sender sends each piece once and in order, and the application never waits for it."""

from __future__ import annotations

import threading
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_engine.pipe.messages import HALTED, Piece
from slipstream_engine.pipe.response_sender import PendingPieces, ResponseSender


def _piece(number: int, *, last: bool = False) -> Piece:
    return Piece(data=f"{number} ".encode(), last=last, error=HALTED if last else None)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=60))
def test_every_response_gets_its_pieces_in_order_and_once(order: list[str]) -> None:
    sent: list[tuple[str, Piece]] = []
    sender: ResponseSender[str] = ResponseSender(lambda name, piece: sent.append((name, piece)))
    pending = {name: PendingPieces(name) for name in order}
    for index, name in enumerate(order):
        number = order[:index].count(name)
        sender.put(pending[name], _piece(number, last=number + 1 == order.count(name)))
    sender.close()

    by_name = {
        name: [piece for _, piece in group]
        for name, group in groupby(sorted(sent, key=lambda pair: pair[0]), key=lambda pair: pair[0])
    }
    assert by_name.keys() == set(order)
    for name, pieces in by_name.items():
        assert b"".join(piece.data for piece in pieces) == "".join(f"{n} " for n in range(order.count(name))).encode()
        assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert [piece.error for piece in pieces] == [None] * (len(pieces) - 1) + [HALTED]


def test_pieces_that_come_while_sending_go_out_as_one() -> None:
    sending, go_on = threading.Event(), threading.Event()
    sent: list[Piece] = []

    def send(_: str, piece: Piece) -> None:
        sending.set()
        assert go_on.wait(10)
        sent.append(piece)

    sender: ResponseSender[str] = ResponseSender(send)
    pending = PendingPieces("a")
    sender.put(pending, _piece(0))
    assert sending.wait(10)
    for number in range(1, 5):
        sender.put(pending, _piece(number, last=number == 4))
    go_on.set()
    sender.close()
    assert sent == [_piece(0), Piece(data=b"1 2 3 4 ", last=True, error=HALTED)]
