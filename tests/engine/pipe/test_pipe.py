"""Applications behind the pipe's messages: requests, pieces, failures, clients that leave."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from slipstream_engine.errors import CheckpointError, RequestError
from slipstream_engine.pipe.call import Application, Receive, Send
from slipstream_engine.pipe.host import Host
from slipstream_engine.pipe.messages import HALTED, UNFINISHED, Piece, merge_pieces, read_request

from tests.support.polling import PATIENCE_S


@asynccontextmanager
async def opened(application: Application) -> AsyncIterator[Application]:
    yield application


@pytest.fixture
def host_of(exit_stack: ExitStack) -> Any:
    def start(application: Application) -> Host:
        host = Host(opened(application))
        exit_stack.callback(host.close)
        host.start()
        return host

    return start


SNOW = '{"method": "GET", "path": "/", "headers": {"x": "\u2603"}}\n'.encode()
DEEP = b'{"method": "GET", "path": "/", "x": ' + b"[" * 100_000 + b"\n"


def request(path: str = "/v1/x?a=b", body: bytes = b"[1]\n[2]") -> bytes:
    return json.dumps({"method": "POST", "path": path, "headers": {"X-A": "1"}}).encode() + b"\n" + body


def rest(pieces: queue.Queue[Piece]) -> Piece:
    """The pieces up to the last one, as one."""
    found = [pieces.get(timeout=PATIENCE_S)]
    while not found[-1].last:
        found.append(pieces.get(timeout=PATIENCE_S))
    return merge_pieces(found)


def answer(host: Host, data: bytes) -> Piece:
    """The whole response, as one piece."""
    pieces: queue.Queue[Piece] = queue.Queue()
    host.call("a", read_request(data), pieces.put)
    return rest(pieces)


def whole(host: Host, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Head and body of the response."""
    piece = answer(host, data)
    assert piece.error is None
    head, _, body = piece.data.partition(b"\n")
    return json.loads(head), body


def test_an_application_gets_the_request_and_its_response_comes_in_pieces(host_of: Callable[..., Host]) -> None:
    async def echo(scope: Any, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-b", b"2")]})
        await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": True})
        await send({"type": "http.response.body", "body": scope["query_string"], "more_body": True})
        await send({"type": "http.response.body", "body": message["body"]})

    head, body = whole(host_of(echo), request())
    assert head == {"status": 201, "headers": {"x-b": "2"}}
    assert body == b"/v1/xa=b[1]\n[2]"


async def fails(scope: Any, receive: Receive, send: Send) -> None:
    raise ValueError("broken")


async def returns(scope: Any, receive: Receive, send: Send) -> None:
    """Sends nothing."""


async def begins(scope: Any, receive: Receive, send: Send) -> None:
    """Sends a head alone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize("application", [fails, returns, begins])
def test_an_application_that_fails_is_an_error(host_of: Callable[..., Host], application: Application) -> None:
    head, body = whole(host_of(application), request())
    assert head["status"] == 500
    assert json.loads(body)["error"]["message"] == "The engine failed."


@pytest.mark.parametrize("application", [fails, returns])
def test_an_answer_that_is_left_unfinished_does_not_look_complete(
    host_of: Callable[..., Host], application: Application
) -> None:
    async def breaks_off(scope: Any, receive: Receive, send: Send) -> None:
        await begins(scope, receive, send)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await application(scope, receive, send)

    piece = answer(host_of(breaks_off), request())
    assert piece.data.endswith(b"\npart")
    assert piece.error == UNFINISHED == "internal: the application ended its answer early"


def test_a_client_that_leaves_is_disconnected(host_of: Callable[..., Host]) -> None:
    events: queue.Queue[str] = queue.Queue()

    async def waits(scope: Any, receive: Receive, send: Send) -> None:
        await receive()
        events.put("begun")
        events.put((await receive())["type"])

    host = host_of(waits)
    host.call("a", read_request(request()), lambda piece: None)
    assert events.get(timeout=PATIENCE_S) == "begun"
    host.cancel("a")
    assert events.get(timeout=PATIENCE_S) == "http.disconnect"
    host.cancel("a")  # it may have ended meanwhile


async def sends_part(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"part", "more_body": True})


async def ends(receive: Receive, send: Send) -> None:
    """Completes a whole answer when its client leaves, as vLLM does."""
    while (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"null"})


async def ignores(receive: Receive, send: Send) -> None:
    """Sends part of a stream, and does not notice that its client leaves."""
    await sends_part(send)
    await asyncio.Event().wait()


async def leaves(receive: Receive, send: Send) -> None:
    """Sends part of a stream, and ends it without an end when its client leaves."""
    await sends_part(send)
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("behaviour", [ends, ignores, leaves])
def test_answers_that_the_host_cuts_end_halted(behaviour: Callable[[Receive, Send], Any]) -> None:
    begun, pieces = threading.Event(), queue.Queue[Piece]()

    async def application(scope: Any, receive: Receive, send: Send) -> None:
        begun.set()
        await behaviour(receive, send)

    host = Host(opened(application), end_s=0.05)
    host.start()
    host.call("a", read_request(request()), pieces.put)
    assert begun.wait(PATIENCE_S)
    host.close()
    piece = rest(pieces)
    assert piece.error == HALTED == "halted: the server is shutting down"
    assert piece.data in (b"", b'{"status":200,"headers":{}}\npart')
    assert pieces.empty()


def test_a_complete_answer_is_not_halted(host_of: Callable[..., Host]) -> None:
    completed = threading.Event()

    async def stays(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all"})
        completed.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    pieces, host = queue.Queue[Piece](), host_of(stays)
    host.call("a", read_request(request()), pieces.put)
    assert completed.wait(PATIENCE_S)
    host.close()
    assert rest(pieces) == Piece(data=b'{"status":200,"headers":{}}\nall', last=True)
    assert pieces.empty()


def test_a_halted_host_answers_no_more(host_of: Callable[..., Host]) -> None:
    host = host_of(begins)
    host.halt()
    assert answer(host, request()) == Piece(data=b"", last=True, error=HALTED)


def test_an_application_that_does_not_load_is_a_load_failure() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[Application]:
        raise RuntimeError("no weights")
        yield fails

    with pytest.raises(CheckpointError, match="no weights"):
        Host(broken()).start()


@pytest.mark.parametrize("data", [b"", b"{}\n", b"\xff\n", b'{"method": 1, "path": "/"}\n', SNOW, DEEP])
def test_a_request_without_a_head_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="request does not begin with a line"):
        read_request(data)
