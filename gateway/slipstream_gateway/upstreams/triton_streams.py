"""Answers of Slipstream's Triton model by tensors: a single one as it is generated, or several merged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from slipstream_core.errors import UpstreamFailed, UpstreamUnavailable
from slipstream_core.types import GenerationRequest
from tritonclient.grpc import service_pb2

from slipstream_gateway.upstreams.base import Tokens, Usage, common_draft, sum_known
from slipstream_gateway.upstreams.triton_errors import rpc_error, triton_error
from slipstream_gateway.upstreams.triton_wire import CANCELLED, is_empty_final, read_response

_END_S = 5.0


class ChoiceStream:
    """One answer of the model as it is generated."""

    def __init__(self, call: Any, index: int, request: GenerationRequest, field: str) -> None:
        """`field` is that of the prompt in the client's request."""
        self.usage = Usage()
        self._call = call
        self._index = index
        self._request, self._field = request, field
        self._first: Tokens | None = None
        self._finished = False
        self._given_up = False

    async def prefetch(self) -> None:
        """Waits for the first response, before which nothing is sent to the client."""
        self._first = await self._read()

    async def next(self) -> Tokens | None:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        return None if self._finished else await self._read()

    async def aclose(self) -> None:
        end_call(self._call, ended=self._finished)

    async def _read(self) -> Tokens | None:
        if self._given_up:
            raise _shutting_down()
        answer = await read_message(self._call)
        if not answer.error_message and is_empty_final(answer.infer_response):
            raise _ended_early()
        if answer.error_message:
            raise triton_error(answer.error_message, request=self._request, field=self._field)
        response = read_response(answer.infer_response, self.usage)
        finish_reason = response.finish_reason or None
        # Not cancelled by the gateway, which would have closed the stream: the server shuts down.
        if finish_reason == CANCELLED:
            if not response.token_ids:
                raise _shutting_down()
            self._given_up, finish_reason = True, None
        self._finished = finish_reason is not None
        return Tokens(
            index=self._index,
            text=response.text,
            token_ids=response.token_ids,
            finish_reason=finish_reason,
            margins=response.margins,
            prompt_token_ids=response.prompt_ids,
        )


class MergedStream:
    """Several answers, `each` to a prompt, with pieces in order of arrival; at most one piece of each is buffered."""

    def __init__(self, choices: Sequence[ChoiceStream], *, each: int) -> None:
        self._choices = choices
        self._each = each
        self._first: Tokens | None = None
        self._waiting: dict[asyncio.Task[Tokens | None], ChoiceStream] = {}
        for choice in choices:
            self._expect(choice)

    @property
    def usage(self) -> Usage:
        """The sum over the answers; a prompt counts once, as with OpenAI. Uncounted drafts of an answer are missing
        in the sum; the engine's time is known if that of each is."""
        parts = [choice.usage for choice in self._choices]
        return Usage(
            prompt_tokens=sum(
                max(part.prompt_tokens for part in parts[at : at + self._each])
                for at in range(0, len(parts), self._each)
            ),
            output_tokens=sum(part.output_tokens for part in parts),
            most_output_tokens=sum(part.most_output_tokens for part in parts),
            drafted=sum(part.drafted for part in parts),
            accepted=sum(part.accepted for part in parts),
            steps=sum(part.steps for part in parts),
            rejected_at=_sum_positions([part.rejected_at for part in parts]),
            counted=all(part.counted for part in parts),
            engine_s=sum_known(part.engine_s for part in parts),
            draft=common_draft(part.draft for part in parts),
        )

    async def prefetch(self) -> None:
        """Raises the refusal of any prompt that has arrived by then; a later one ends the stream."""
        self._first = await self._read()
        for task in self._waiting:
            if task.done():
                task.result()

    async def next(self) -> Tokens | None:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        return await self._read()

    async def aclose(self) -> None:
        tasks = list(self._waiting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for choice in self._choices:
            await choice.aclose()

    def _expect(self, choice: ChoiceStream) -> None:
        self._waiting[asyncio.create_task(choice.next())] = choice

    async def _read(self) -> Tokens | None:
        while self._waiting:
            done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            task = next(iter(done))
            choice = self._waiting.pop(task)
            piece = task.result()
            if piece is not None:
                self._expect(choice)
                return piece
        return None


def _sum_positions(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    width = max(map(len, rows), default=0)
    return tuple(sum(row[at] for row in rows if at < len(row)) for at in range(width))


def _shutting_down() -> UpstreamUnavailable:
    return UpstreamUnavailable("The inference server is shutting down.")


def _ended_early() -> UpstreamFailed:
    return UpstreamFailed("The inference server ended its stream prematurely.")


async def read_message(call: Any) -> service_pb2.ModelStreamInferResponse:
    """The next message of `call`. Raises the error of the call, and `UpstreamFailed` if there is no message or it is
    not a valid protobuf message."""
    try:
        message = await call.read()
    except grpc.RpcError as exc:
        raise rpc_error(exc) from None
    if message is grpc.aio.EOF:
        raise _ended_early()
    if message is None:  # gRPC has logged the parse error
        raise UpstreamFailed("The inference server sent a malformed message.")
    return message


def end_call(call: Any, *, ended: bool) -> None:
    """Cancels a call that still runs. A call whose last message has arrived ends by itself without delay: Triton 2.51
    leaks some 5 kB for each cancelled call. gRPC cancels a call without references, so the timer keeps one until the
    end."""
    if not ended:
        call.cancel()
        return
    timer = asyncio.get_running_loop().call_later(_END_S, call.cancel)
    call.add_done_callback(lambda _: timer.cancel())
