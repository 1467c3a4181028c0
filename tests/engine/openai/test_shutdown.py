"""The end of the engine or of its host, while answers run: none looks complete, and none reports an end of its own."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from slipstream_engine.contract.protocol import OnChunk
from slipstream_engine.contract.types import Chunk, GenerationRequest
from slipstream_engine.openai.app import create_app
from slipstream_engine.pipe.call import Application
from slipstream_engine.pipe.host import Host
from slipstream_engine.pipe.messages import HALTED, UNFINISHED, Piece, PipedRequest
from slipstream_engine.serving.service import EngineService

from tests.engine.pipe.test_pipe import rest
from tests.engine.requests_and_answers import Make, is_closing
from tests.support.polling import PATIENCE_S, eventually

ASK = {"messages": [{"role": "user", "content": "delivery delay"}], "temperature": 0, "ignore_eos": True}
CONTENT = b'"delta":{"content":'


class Held(EngineService):
    """An engine that stands still at the second chunk of an answer until `go_on` is set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stands, self.go_on = threading.Event(), threading.Event()

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None:
        begun = False

        def take(chunk: Chunk) -> None:
            nonlocal begun
            if begun:
                self.stands.set()
                self.go_on.wait(PATIENCE_S)
            begun = True
            on_chunk(chunk)

        super().submit(request, take, stops=stops)


@pytest.fixture
def engine(make_engine: Make) -> Iterator[Held]:
    service = Held(make_engine("close"))
    service.begin()
    yield service
    service.go_on.set()
    service.close()


@pytest.fixture
def host(engine: Held) -> Iterator[Host]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Application]:
        yield create_app(engine, model="small")

    host = Host(opened())
    host.start()
    yield host
    host.close()


def ask(host: Host, engine: Held, *, stream: bool) -> queue.Queue[Piece]:
    """The pieces of an answer at whose second chunk the engine stands. A stream has passed its first chunk on."""
    pieces: queue.Queue[Piece] = queue.Queue()
    body = json.dumps({**ASK, "stream": stream}).encode()
    host.call("a", PipedRequest(method="POST", path="/v1/chat/completions", body=body), pieces.put)
    assert engine.stands.wait(PATIENCE_S)
    if stream:
        eventually(lambda: any(CONTENT in piece.data for piece in list(pieces.queue)), "the first chunk")
    return pieces


def close(engine: Held) -> None:
    closing = threading.Thread(target=engine.close)
    closing.start()
    eventually(lambda: is_closing(engine), "the engine refuses requests")
    engine.go_on.set()
    closing.join(PATIENCE_S)


def test_a_stream_that_the_engines_end_cuts_does_not_look_complete(host: Host, engine: Held) -> None:
    pieces = ask(host, engine, stream=True)
    close(engine)
    piece = rest(pieces)
    assert piece.error == UNFINISHED
    assert CONTENT in piece.data
    assert b"[DONE]" not in piece.data
    assert b'"finish_reason":"' not in piece.data


def test_a_whole_answer_that_the_engines_end_cuts_is_an_error(host: Host, engine: Held) -> None:
    pieces = ask(host, engine, stream=False)
    close(engine)
    head, _, body = rest(pieces).data.partition(b"\n")
    assert json.loads(head)["status"] == 503
    assert json.loads(body)["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_that_the_host_cuts_end_halted_at_once(host: Host, engine: Held, stream: bool) -> None:
    pieces = ask(host, engine, stream=stream)
    host.halt()
    piece = rest(pieces)  # while the engine stands
    assert piece.error == HALTED
    assert (CONTENT in piece.data) == stream
    assert b"[DONE]" not in piece.data
