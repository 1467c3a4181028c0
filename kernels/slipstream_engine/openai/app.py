"""The ASGI application of an embedded engine: OpenAI's completions, and the contract's control routes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slipstream_engine.contract.types import Chunk, FinishReason
from slipstream_engine.errors import ClosedError, EngineError
from slipstream_engine.openai.answer.rendering import DONE, Renderer
from slipstream_engine.openai.control import Access, Control
from slipstream_engine.openai.errors import JSON, Refusal, bad_field, refusal_of
from slipstream_engine.openai.generation import Generation
from slipstream_engine.openai.request.body import Body, ChatBody, CompletionBody, decode, read_body
from slipstream_engine.openai.request.calls import Call, Limits, chat_call, completion_call
from slipstream_engine.serving.service import EngineService

_LARGE_BODY_BYTES = 32 * 1024
"""Larger bodies are parsed and tokenized in a thread, so that other requests are not delayed."""
_MOST_LARGE = 16
_MAX_BODY_BYTES = 64 * 1024 * 1024
AnyBody = TypeVar("AnyBody", bound=Body)
Parse = Callable[[bytes, str], Call]


def create_app(engine: EngineService, *, model: str, api_key: str | None = None) -> Starlette:
    """The application of a started `engine`, which the caller closes. It serves the engine's target as `model`."""
    access = Access(api_key)
    facts = engine.facts()
    limits = Limits(draft_length=facts.max_draft_length, context_tokens=facts.context_tokens)

    def parse_chat(raw: bytes, request_id: str) -> Call:
        return chat_call(_for_model(decode(raw, ChatBody), model), engine.tokenizer, limits, request_id)

    def parse_completion(raw: bytes, request_id: str) -> Call:
        return completion_call(_for_model(decode(raw, CompletionBody), model), engine.tokenizer, limits, request_id)

    async def health(request: Request) -> Response:
        return Response(status_code=200 if engine.is_alive else 503)

    async def models(request: Request) -> Response:
        try:
            access.check(request)
        except Refusal as refusal:
            return refusal.response()
        entry = {"id": model, "object": "model", "owned_by": "slipstream", "max_model_len": facts.context_tokens}
        return Response(msgspec.json.encode({"object": "list", "data": [entry]}), media_type=JSON)

    routes = [
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/chat/completions", Completions(engine, model, access, parse_chat, "messages"), methods=["POST"]),
        Route("/v1/completions", Completions(engine, model, access, parse_completion, "prompt"), methods=["POST"]),
        *Control(engine, access).routes(),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


class Completions:
    """The ASGI application of one path. `prompt` is the field with the prompt."""

    def __init__(self, engine: EngineService, model: str, access: Access, parse: Parse, prompt: str) -> None:
        self._engine, self._model, self._access = engine, model, access
        self._parse, self._prompt = parse, prompt
        self._large = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        stops = self._engine.stops
        try:
            self._access.check(request)
            raw = await read_body(request, _MAX_BODY_BYTES)
            await _while_connected(receive, self._answer(raw, request, stops, scope, receive, send))
        except ClientDisconnect:
            return
        except EngineError as exc:
            await refusal_of(exc, self._prompt).response()(scope, receive, send)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)

    async def _parsed(self, raw: bytes, name: str) -> Call:
        """The call of a body. Raises `Refusal` if too many large bodies wait."""
        if len(raw) <= _LARGE_BODY_BYTES:
            return self._parse(raw, name)
        if self._large >= _MOST_LARGE:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "Too many large requests wait to be read.")
        self._large += 1
        try:
            return await asyncio.to_thread(self._parse, raw, name)
        finally:
            self._large -= 1

    async def _answer(
        self, raw: bytes, request: Request, stops: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        name = request.headers.get("x-request-id") or uuid.uuid4().hex
        call = await self._parsed(raw, name)
        if len(call.requests) > self._engine.capacity:
            raise bad_field(
                self._prompt if call.choices == 1 else "n",
                f"makes {len(call.requests)} answers; this server decodes and queues {self._engine.capacity} at most.",
            )
        if (grammar := call.requests[0].grammar) is not None:  # it is kept for `submit`
            await asyncio.to_thread(self._engine.grammars.compile, grammar)
        facts = self._engine.facts()
        renderer = Renderer(
            call,
            model=self._model,
            fingerprint=facts.fingerprint,
            longest=facts.max_draft_length,
            texts=self._engine.tokenizer,
        )
        async with Generation(self._engine, call, stops=stops) as generation:
            generation.submit()
            if call.stream:
                await _stream(generation, renderer, send)
            else:
                body = await _whole(generation, renderer, len(call.requests))
                await Response(body, media_type=JSON)(scope, receive, send)


async def _whole(generation: Generation, renderer: Renderer, sequences: int) -> bytes:
    """Raises `Refusal` if the engine fails, and `ClosedError` if it closes."""
    answers: list[list[Chunk]] = [[] for _ in range(sequences)]
    while chunks := await generation.next():
        for index, chunk in chunks:
            _check(chunk)
            answers[index].append(chunk)
    return renderer.whole(answers)


async def _stream(generation: Generation, renderer: Renderer, send: Send) -> None:
    """Raises `Refusal` if the engine fails before its first chunk, and `ClosedError` if it closes.

    A later failure is an event. An answer that is cut because the engine closes gets no end, so that it does not look
    complete."""
    begun = False
    while chunks := await generation.next():
        try:
            for _, chunk in chunks:
                _check(chunk)
        except (Refusal, ClosedError) as exc:
            if not begun:
                raise
            if isinstance(exc, Refusal):
                await _send(send, b"data: " + exc.body() + b"\n\n" + DONE, more=False)
            return
        if not begun:
            begun = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send(send, b"".join([renderer.events(index, chunk) for index, chunk in chunks]), more=True)
    await _send(send, renderer.end(), more=False)


async def _send(send: Send, data: bytes, *, more: bool) -> None:
    if data or not more:
        await send({"type": "http.response.body", "body": data, "more_body": more})


def _check(chunk: Chunk) -> None:
    if chunk.finish_reason is FinishReason.ERROR:
        raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, chunk.error or "The engine failed.")
    if chunk.finish_reason is FinishReason.CANCELLED:  # by the engine itself: other cancelled answers have no reader
        raise ClosedError("the engine is shutting down")


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it when the client leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _for_model(body: AnyBody, model: str) -> AnyBody:
    if body.model not in (None, model):
        raise Refusal(HTTPStatus.NOT_FOUND, f"The model {body.model!r:.80} does not exist.", "model")
    return body


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Refusal(HTTPStatus(error.status_code), error.detail).response()
