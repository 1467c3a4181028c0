"""The end of an answer reaches its client also where its last response does not fit into shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slipstream_engine.contract.protocol import Reply
from slipstream_engine.contract.types import Chunk, Counts, FinishReason

from tests.engine.triton.conftest import Sender

OUTPUTS = frozenset({"text_output", "token_ids", "finish_reason", "prompt_tokens", "output_tokens", "drafted", "steps"})
LARGE = 300_000


def _chunk(size: int, *, counted: bool = True) -> Chunk:
    counts = Counts(prompt_tokens=1, output_tokens=size, counted=counted)
    return Chunk(request_id="1", text="", token_ids=tuple(range(size)), counts=counts, finish_reason=FinishReason.STOP)


def _reply(size: int) -> Reply:
    return Reply(status=200, data=b"x" * size, last=True)


@pytest.fixture
def make_answer(load_backend: Callable[[str], Any]) -> Callable[[Sender], Any]:
    module = load_backend("slipstream_engine.triton_server.answer")
    return lambda sender: module.TritonAnswer(request_id="1", sender=sender, outputs=OUTPUTS, stops=0)


def _names(response: Any) -> set[str]:
    return {tensor.name for tensor in response.output_tensors()}


@pytest.mark.parametrize("item", [_chunk(3), _reply(3)], ids=["tensors", "reply"])
def test_a_small_last_response_is_the_final_one(make_answer: Callable[[Sender], Any], item: Any) -> None:
    sender = Sender(room=1_000)
    make_answer(sender).send(item)
    assert len(sender.sent) == 1
    assert sender.ended


@pytest.mark.parametrize("item", [_chunk(LARGE), _reply(LARGE)], ids=["tensors", "reply"])
def test_a_large_last_response_goes_out_whole_before_the_final_one(
    make_answer: Callable[[Sender], Any], item: Any
) -> None:
    sender = Sender(room=4 * LARGE + 1_000)
    make_answer(sender).send(item)
    content, end = sender.sent
    assert sender.ended
    if isinstance(item, Reply):
        assert content.output_tensors()[1].as_numpy().tobytes() == item.data
        assert end.output_tensors()[0].as_numpy().tolist() == [200]
        assert end.output_tensors()[1].as_numpy().size == 0
    else:
        assert "finish_reason" in _names(content)
        assert end is None


@pytest.mark.parametrize("item", [_chunk(LARGE), _reply(LARGE)], ids=["tensors", "reply"])
def test_a_last_response_without_room_ends_in_an_error(load_backend: Callable[[str], Any], item: Any) -> None:
    answers = load_backend("slipstream_engine.triton_server.answer")
    model_type = load_backend("slipstream_engine.triton_server.model").TritonModel
    sender = Sender(room=1_000)
    answer = answers.TritonAnswer(request_id="1", sender=sender, outputs=OUTPUTS, stops=0)
    model = type("Model", (model_type,), {"start_engine": None})()
    model._answers = {"1": answer}
    model._send(answer, item)
    [response] = sender.sent
    assert sender.ended
    assert response.error.message == "internal: the last response could not be sent"
    assert not answer.is_cancelled()


def test_a_sender_is_asked_nothing_after_a_final_response_that_failed(make_answer: Callable[[Sender], Any]) -> None:
    sender = Sender(room=0)
    answer = make_answer(sender)
    with pytest.raises(RuntimeError, match="shared memory"):
        answer.send(_chunk(3))
    assert not answer.is_cancelled()


def test_counts_that_are_unknown_are_left_out(make_answer: Callable[[Sender], Any]) -> None:
    known, unknown = Sender(room=1_000), Sender(room=1_000)
    make_answer(known).send(_chunk(3))
    make_answer(unknown).send(_chunk(3, counted=False))
    assert _names(known.sent[0]) - _names(unknown.sent[0]) == {"drafted", "steps"}
    assert _names(unknown.sent[0]) == OUTPUTS - {"drafted", "steps"}
