"""Requests to the engines of the tests, and what their chunks say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace
from slipstream_engine.contract.types import Chunk, GenerationRequest, SamplingParams
from slipstream_engine.errors import ClosedError, OverloadedError, RequestError
from slipstream_engine.serving.service import EngineService
from slipstream_engine.step.engine import Engine

Make = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0.0)
PROMPT = tuple(b"Reason for contact: delivery delay. ")


def generation_request(name: str = "a", **changes: Any) -> GenerationRequest:
    """A greedy request with `changes`."""
    fields: dict[str, Any] = {"request_id": name, "prompt_ids": PROMPT, "max_tokens": 40, "sampling": GREEDY}
    return GenerationRequest(**{**fields, **changes})


def drain(engine: Engine, requests: list[GenerationRequest], *, stop_before: int = -1) -> dict[str, list[Chunk]]:
    """Run requests to their ends; their chunks by request id. Drafting is stopped before the step `stop_before`, of
    which the first is 0."""
    for request in requests:
        engine.add(request)
    chunks: dict[str, list[Chunk]] = {request.request_id: [] for request in requests}
    step = 0
    while engine.busy:
        if step == stop_before:
            engine.stop_drafting()
        for chunk in engine.step():
            chunks[chunk.request_id].append(chunk)
        step += 1
    return chunks


def is_closing(service: EngineService) -> bool:
    """Whether `service` takes no request any more. Its thread stands meanwhile, so that nothing runs what it took."""
    try:
        service.submit(generation_request(), lambda chunk: None)
    except ClosedError:
        return True
    except (OverloadedError, RequestError):  # the engine is full, or the id is that of a request that runs
        return False
    return False


def tokens_of(chunks: Iterable[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def text_of(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def without_engine_time(chunks: Iterable[Chunk]) -> list[Chunk]:
    """`chunks` without their engine times, so that those of different runs are comparable."""
    return [replace(chunk, counts=replace(chunk.counts, engine_s=None)) for chunk in chunks]
