"""The gateway's end of the capture writer, with a real writer."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from slipstream_core.manifest.capture import Capture
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Reason
from slipstream_gateway.capture.channel import ENCODED_AT_ONCE, CaptureChannel
from slipstream_gateway.capture.copies import KeptAnswer
from slipstream_gateway.capture.frames import Result
from slipstream_gateway.capture.store import CaptureStore, parquet
from slipstream_gateway.request.answer_copy import AnswerCopy
from slipstream_gateway.request.call import Call, Context
from slipstream_gateway.request.deadlines import CallTimer
from slipstream_gateway.upstreams.base import Piece, Usage

from tests.support.polling import PATIENCE_S

BODY = b'{"model":"acme","prompt":"Hello"}'
DECISION = Decision(
    arm=Arm.PLAIN, reason=Reason.NO_POLICY, request_class="code/short", draft_length=0, detail="", numbers={}
)
PAIR = "default/acme"
TOO_LARGE = 2**70  # for MessagePack


def answer(number: int) -> KeptAnswer:
    copy = AnswerCopy()
    body = b'{"choices": [{"index": 0, "text": "Answer %d", "finish_reason": "stop"}]}' % number
    copy.add(Piece(body, token_ids=(number,)))
    timer = CallTimer(total_s=PATIENCE_S, deadline_s=None)
    call = Call(GenerationRequest(endpoint=Endpoint.COMPLETION, model="acme", raw=BODY), Context(str(number)), timer)
    timer.close()
    call.pair, call.fingerprint, call.spent = PAIR, "target", Usage(output_tokens=1)
    return KeptAnswer(
        call=call,
        decision=DECISION,
        copy=copy,
        target=None,
        size_bytes=len(BODY) + copy.size_bytes(),
        time_s=1_700_000_000.0 + number,
    )


async def send_first(channel: CaptureChannel, first: KeptAnswer) -> None:
    """Returns once the writer runs and has been sent `first`."""
    refused = channel.counts()
    channel.send(first)
    while channel.counts() != refused:
        await asyncio.sleep(0.05)
        refused = channel.counts()
        channel.send(first)


@pytest.mark.integration
async def test_an_answer_that_cannot_be_encoded_costs_no_other(tmp_path: Path) -> None:
    answers = [answer(number) for number in range(ENCODED_AT_ONCE + 3)]
    answers[1].call.spent = Usage(drafted=TOO_LARGE)
    channel = CaptureChannel(str(tmp_path))
    channel.configure({PAIR: Capture(share=1.0)})
    async with channel.running(), asyncio.timeout(30):
        await send_first(channel, answers[0])
        before = {count.result: count.answers for count in channel.counts()}
        for each in answers[1:]:
            channel.send(each)
    results = {count.result: count.answers for count in channel.counts()}
    assert results == {**before, Result.FAILED: 1, Result.WRITTEN: len(answers) - 1}
    store = CaptureStore.at(str(tmp_path))
    assert sum(store.read(file, ("id",)).num_rows for file in store.files()) == len(answers) - 1


def test_a_file_that_is_gone_is_not_replaced(tmp_path: Path) -> None:
    store, rows = CaptureStore.at(str(tmp_path)), pa.table({"id": ["a", "b"]})
    store.put(PAIR, datetime.date(2026, 11, 26), parquet(rows), retention_days=1)
    [file] = store.files()
    store.delete(file)
    with pytest.raises(FileNotFoundError):
        store.replace(file, rows)
    assert store.files() == []
