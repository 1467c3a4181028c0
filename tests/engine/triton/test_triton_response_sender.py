"""The response sender between the engine's steps and Triton: nothing lost, nothing out of order, no step blocked."""

from __future__ import annotations

import threading
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_engine.contract.types import Chunk, Counts, FinishReason, merge_chunks
from slipstream_engine.triton_server.response_sender import PendingItems, ResponseSender


def _chunk(name: str, number: int, *, last: bool = False) -> Chunk:
    return Chunk(
        request_id=name,
        text=f"{number} ",
        token_ids=(number,),
        counts=Counts(prompt_tokens=1, output_tokens=number + 1),
        finish_reason=FinishReason.STOP if last else None,
    )


@settings(max_examples=50, deadline=None)
@given(
    order=st.lists(st.sampled_from(["a", "b", "c"]), max_size=60),
    streams=st.fixed_dictionaries({name: st.booleans() for name in ("a", "b", "c")}),
)
def test_every_request_gets_its_chunks_in_order_and_once(order: list[str], streams: dict[str, bool]) -> None:
    sent: list[tuple[str, Chunk]] = []
    sender: ResponseSender[str, Chunk] = ResponseSender(lambda name, chunk: sent.append((name, chunk)))
    pending = {name: PendingItems(name, merge_chunks, stream=stream) for name, stream in streams.items()}
    for index, name in enumerate(order):
        number = order[:index].count(name)
        sender.put(pending[name], _chunk(name, number, last=number + 1 == order.count(name)))
    sender.close()

    by_name = {
        name: [chunk for _, chunk in group]
        for name, group in groupby(sorted(sent, key=lambda pair: pair[0]), key=lambda pair: pair[0])
    }
    for name in set(order):
        chunks, count = by_name[name], order.count(name)
        assert [token for chunk in chunks for token in chunk.token_ids] == list(range(count))
        assert "".join(chunk.text for chunk in chunks) == "".join(f"{number} " for number in range(count))
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [FinishReason.STOP]
        assert chunks[-1].counts.output_tokens == count
        assert streams[name] or len(chunks) == 1


def test_chunks_that_come_while_sending_go_out_as_one() -> None:
    sending, go_on = threading.Event(), threading.Event()
    sent: list[Chunk] = []

    def send(_: str, chunk: Chunk) -> None:
        sending.set()
        assert go_on.wait(10)
        sent.append(chunk)

    sender: ResponseSender[str, Chunk] = ResponseSender(send)
    item = PendingItems("a", merge_chunks, stream=True)
    sender.put(item, _chunk("a", 0))
    assert sending.wait(10)
    for number in range(1, 5):
        sender.put(item, _chunk("a", number, last=number == 4))
    go_on.set()
    sender.close()
    assert [chunk.token_ids for chunk in sent] == [(0,), (1, 2, 3, 4)]
    assert sent[-1].finish_reason is FinishReason.STOP
