"""Triton Inference Server over gRPC as an upstream: decoupled streams by the stub that tritonclient generates.

The stub is called directly rather than by `tritonclient.grpc.aio`'s wrapper: it takes one request without an
asynchronous generator around it, and does not build numpy arrays for tensors of a few bytes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipstream_gateway.errors import (
    Incomparable,
    SlipstreamError,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from slipstream_gateway.upstreams.base import ANY_DRAFT, Completion, Drafting, Job, Tokens, TokenScore, Usage
from slipstream_gateway.upstreams.scores import UNSCORED
from slipstream_gateway.upstreams.tls import Credentials
from slipstream_gateway.upstreams.triton_wire import (
    infer_request,
    is_empty_final,
    read_response,
    stop_drafting_request,
    triton_error,
)

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # Above the 300 s that a gRPC server, Triton among them, lets pass between pings by default: more of them get a
    # connection closed ("too many pings") under its streams. Dead peers are found by the deadlines, long before.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),  # a request waits for the next attempt, so it must come soon
)
CANCELLED = "cancelled"  # the model's finish reason of work that it gave up
_RECONNECT_WAIT_S = 0.8  # longer than the longest pause between two attempts to connect
_PROBE_TIMEOUT_S = 2.0
_DEADLINE_GRACE_S = 0.5
_CONTROL_TIMEOUT_S = 3.0
_WHY_TIMEOUT_S = 0.5
_END_S = 5.0


class TritonUpstream:
    """One Triton server at `address` (`host:port` of its gRPC port) with Slipstream's model in it."""

    def __init__(self, address: str, *, model: str, connect_timeout_s: float, tls: Credentials | None = None) -> None:
        self._model = model
        self._connect_timeout_s = connect_timeout_s
        self._stops = 0
        self._tls = tls
        self._channel = _channel(address, tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @property
    def drafting(self) -> Drafting:
        return ANY_DRAFT

    async def complete(self, job: Job) -> Completion:
        stream = await self._start(job)
        try:
            parts: list[list[Tokens]] = [[] for _ in range(job.request.n)]
            while (piece := await stream.next()) is not None:
                parts[piece.index].append(piece)
            return Completion(pieces=tuple(map(_joined, parts)), usage=stream.usage)
        finally:
            await stream.aclose()

    async def open(self, job: Job) -> MergedStream | ChoiceStream:
        stream = await self._start(job)
        try:
            await stream.prefetch()
        except BaseException:  # whatever ends the attempt, the work must not outlive it
            await stream.aclose()
            raise
        return stream

    async def probe(self) -> None:
        request = service_pb2.ModelReadyRequest(name=self._model)
        try:
            answer = await self._stub.ModelReady(request, timeout=_PROBE_TIMEOUT_S)
        except grpc.RpcError as exc:
            raise _rpc_error(exc) from exc
        if not answer.ready:
            raise UpstreamUnavailable("The inference server has no such model, or it is not ready.", detail=self._model)

    async def stop_drafting(self) -> None:
        self._stops += 1
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                await self._connected()
                call = self._stub.ModelStreamInfer(_one(stop_drafting_request(self._model)))
                try:
                    await _read_control(call)
                finally:
                    call.cancel()
        except TimeoutError as exc:
            raise UpstreamTimeout(f"The inference server did not answer within {_CONTROL_TIMEOUT_S:g} s.") from exc

    async def score(
        self,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        *,
        model: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> tuple[TokenScore, ...]:
        """Not in the model's contract."""
        raise Incomparable(UNSCORED)

    async def aclose(self) -> None:
        await self._channel.close()

    async def _start(self, job: Job) -> MergedStream | ChoiceStream:
        stops = self._stops
        await self._connected()
        # A request that waited for a connection came too late for a control message that waited like it.
        draft_length = job.draft_length if stops == self._stops else 0
        request, seed = job.request, job.request.seed
        if seed is None:
            seed = secrets.randbits(63)
        prompt_field = "messages" if request.messages else "prompt"
        choices = []
        for index in range(request.n):
            message = infer_request(
                request,
                model=job.model,
                draft_length=draft_length,
                request_id=f"{job.request_id}-{index}" if index else job.request_id,
                seed=_wrap_int64(seed + index),
                margins=job.margins,
                resume_ids=job.committed.token_ids if job.committed is not None else (),
            )
            call = self._stub.ModelStreamInfer(_one(message), timeout=_timeout_s(job))
            choices.append(ChoiceStream(call, index, prompt_field))
        return choices[0] if len(choices) == 1 else MergedStream(choices)

    async def _connected(self) -> None:
        """Waits for the channel, within the connect deadline, so that a dead host is told from a slow answer."""
        ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        first = state = self._channel.get_state(try_to_connect=True)
        if state is ready:
            return
        # A channel that has failed says so until it is connected again, so its state tells nothing of the attempt
        # that is due now: that one is waited for instead.
        wait_s = min(self._connect_timeout_s, _RECONNECT_WAIT_S) if first is failed else self._connect_timeout_s
        try:
            async with asyncio.timeout(wait_s):
                while state is not ready:
                    if state is failed and first is not failed:
                        raise UpstreamUnavailable("The inference server cannot be reached.", detail=await self._why())
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError as exc:
            if state is failed:
                raise UpstreamUnavailable("The inference server cannot be reached.", detail=await self._why()) from exc
            raise UpstreamTimeout("The inference server did not accept a connection in time.") from exc

    async def _why(self) -> str:
        """What is wrong with a channel that has failed; asked for where TLS is spoken, of which much can be. The call
        fails at once with what the last attempt to connect failed with."""
        if self._tls is None:
            return ""
        try:
            await self._stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=_WHY_TIMEOUT_S)
        except grpc.RpcError as exc:
            return str(exc.details()) if isinstance(exc, grpc.aio.AioRpcError) else str(exc)
        return ""


def _channel(address: str, tls: Credentials | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


async def _read_control(call: Any) -> None:
    """Reads the answer to a control message: a response without tensors."""
    try:
        answer = await call.read()
    except grpc.RpcError as exc:
        raise _rpc_error(exc) from exc
    if answer is grpc.aio.EOF:
        raise UpstreamFailed("The inference server ended its stream without an answer.")
    if answer.error_message:
        raise triton_error(answer.error_message)


def _timeout_s(job: Job) -> float | None:
    """What the call may take, None where nothing limits it. A moment more than the client's deadline: who waits for the
    answer cancels it first and knows why, and the server ends its work even where nobody is left to cancel it."""
    return None if job.deadline_s is None else max(job.deadline_s - time.monotonic(), 0.0) + _DEADLINE_GRACE_S


def _joined(parts: Sequence[Tokens]) -> Tokens:
    """One answer of its `parts`, of which there is one at least: the usual case where nothing is streamed."""
    if len(parts) == 1:
        return parts[0]
    return Tokens(
        index=parts[-1].index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        finish_reason=parts[-1].finish_reason,
        margins=tuple(margin for part in parts for margin in part.margins),
    )


def _let_end(call: Any) -> None:
    """Lets a call whose last message has come end by itself, and holds nobody up. Triton 2.51 keeps some 5 kB for ever
    of each call that is cancelled, and gRPC cancels a call that nothing refers to: the timer does until the end."""
    timer = asyncio.get_running_loop().call_later(_END_S, call.cancel)
    call.add_done_callback(lambda _: timer.cancel())


async def _one(message: service_pb2.ModelInferRequest) -> Any:
    yield message


class ChoiceStream:
    """One answer of the model as it is generated."""

    def __init__(self, call: Any, index: int, prompt_field: str) -> None:
        self.usage = Usage()
        self._call = call
        self._index = index
        self._prompt_field = prompt_field
        self._first: Tokens | None = None
        self._finished = False
        self._given_up = False

    async def prefetch(self) -> None:
        """Waits for the first response; nothing has been promised to the client before it."""
        self._first = await self._read()

    async def next(self) -> Tokens | None:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        return None if self._finished else await self._read()

    async def aclose(self) -> None:
        if self._finished:
            _let_end(self._call)
        else:
            self._call.cancel()

    async def _read(self) -> Tokens | None:
        if self._given_up:
            raise _shutting_down()
        try:
            answer = await self._call.read()
        except grpc.RpcError as exc:
            raise _rpc_error(exc) from exc
        if answer is grpc.aio.EOF or (not answer.error_message and is_empty_final(answer.infer_response)):
            raise UpstreamFailed("The inference server ended its stream before the answer's end.")
        if answer.error_message:
            raise triton_error(answer.error_message, prompt_field=self._prompt_field)
        response = read_response(answer.infer_response, self.usage)
        finish_reason = response.finish_reason or None
        if finish_reason == CANCELLED:  # not by us, who would not be listening: the server ends, the answer does not
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
        )


class MergedStream:
    """The answers of `n` > 1, pieces in order of arrival; at most one piece of each is held."""

    def __init__(self, choices: Sequence[ChoiceStream]) -> None:
        self._choices = choices
        self._first: Tokens | None = None
        self._waiting: dict[asyncio.Task[Tokens | None], ChoiceStream] = {}
        for choice in choices:
            self._expect(choice)

    @property
    def usage(self) -> Usage:
        """The sum over the answers; the prompt counts once, as OpenAI counts it."""
        parts = [choice.usage for choice in self._choices]
        return Usage(
            prompt_tokens=max(part.prompt_tokens for part in parts),
            output_tokens=sum(part.output_tokens for part in parts),
            drafted=sum(part.drafted for part in parts),
            accepted=sum(part.accepted for part in parts),
            steps=sum(part.steps for part in parts),
            rejected_at=_sum_positions([part.rejected_at for part in parts]),
        )

    async def prefetch(self) -> None:
        self._first = await self._read()

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


def _wrap_int64(value: int) -> int:
    """`value` as a signed 64 bit number, wrapped around."""
    return (value + 2**63) % 2**64 - 2**63


def _shutting_down() -> UpstreamUnavailable:
    return UpstreamUnavailable("The inference server is shutting down.")


def _rpc_error(exc: grpc.RpcError) -> SlipstreamError:
    """The error that a failed call stands for."""
    if not isinstance(exc, grpc.aio.AioRpcError):
        return UpstreamFailed("The inference server failed.", detail=str(exc))
    status, details = exc.code(), exc.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE:
        return UpstreamUnavailable("The inference server cannot be reached.", detail=details)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UpstreamTimeout("The inference server did not answer in time.")
    return triton_error(details)
