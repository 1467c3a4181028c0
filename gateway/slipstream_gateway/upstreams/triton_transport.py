"""An OpenAI application inside Triton Inference Server, over gRPC: Slipstream's pipe model (`slipstream_engine.pipe`).

Each of its two tensors, `request` and `response`, is a JSON object in one line, then the bytes of the body. The stub
that tritonclient generates is called directly rather than through the wrapper of `tritonclient.grpc.aio`: it takes one
request without an asynchronous generator around it, and builds no numpy arrays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import msgspec
from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.errors import SlipstreamError, UpstreamFailed, UpstreamTimeout
from tritonclient.grpc import service_pb2

from slipstream_gateway.upstreams.openai_bodies import read_body
from slipstream_gateway.upstreams.tls import Credentials
from slipstream_gateway.upstreams.transport import Fetched
from slipstream_gateway.upstreams.triton_channel import TritonChannel
from slipstream_gateway.upstreams.triton_errors import rpc_error, triton_error

_HEAD_END = b"\n"
_END_S = 5.0


class _Head(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str] = {}


_decode_head = msgspec.json.Decoder(_Head).decode
_encode = msgspec.json.encode


class TritonTransport:
    """The connection to the Triton server at `address` (`host:port` of its gRPC port), whose model `model` is the
    pipe. A server answers the application's `GET` requests however busy its engine is."""

    answers_probes = True
    is_of_engines = True

    def __init__(
        self,
        address: str,
        *,
        model: str,
        connect_timeout_s: float,
        tls: Credentials | None = None,
        rules: EndpointRules | None = None,
    ) -> None:
        self.address = address
        self._model = model
        self._channel = TritonChannel(
            address, connect_timeout_s=connect_timeout_s, tls=tls, rules=rules or EndpointRules()
        )

    @property
    def losses(self) -> int:
        return self._channel.losses

    async def connected(self) -> None:
        await self._channel.connected()

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float | None = None
    ) -> PipedResponse:
        return await self._send("POST", path, headers, body, timeout_s)

    async def fetch(
        self, method: str, path: str, headers: Mapping[str, str], *, timeout_s: float | None = None
    ) -> Fetched:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._send(method, path, headers, b"", timeout_s)
                try:
                    return Fetched(response.status, await read_body(response))
                finally:
                    response.close()
        except TimeoutError as exc:
            raise UpstreamTimeout("The upstream did not respond in time.") from exc

    async def aclose(self) -> None:
        await self._channel.aclose()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float | None
    ) -> PipedResponse:
        await self._channel.connected()
        named = {name: value for name, value in headers.items() if name != "authorization"}  # Triton controls access
        head = _encode({"method": method, "path": f"/{path}", "headers": named})
        message = service_pb2.ModelInferRequest(model_name=self._model)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        data = head + _HEAD_END + body
        message.inputs.add(name="request", datatype="UINT8", shape=[len(data)])
        message.raw_input_contents.append(data)
        response = PipedResponse(self._channel.stub.ModelStreamInfer(_one(message), timeout=timeout_s))
        try:
            await response.read_head()
        except BaseException:  # however the attempt ends, the work must be cancelled
            response.close()
            raise
        return response


class PipedResponse:
    """A running answer of the application; also the reader of its body."""

    def __init__(self, call: Any) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._call = call
        self._data = b""
        self._is_complete = False

    @property
    def content(self) -> PipedResponse:
        return self

    async def read_head(self) -> None:
        """Waits for the head. The first response contains it. Raises `SlipstreamError`."""
        line, end, self._data = (await self._read()).partition(_HEAD_END)
        try:
            head = _decode_head(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            end = b""
        if not end:
            raise UpstreamFailed("The upstream's response does not begin with a status.", detail="a Triton model")
        self.status, self.headers = head.status, head.headers

    async def readany(self) -> bytes:
        data, self._data = self._data, b""
        while not data and not self._is_complete:
            data = await self._read()
        return data

    def close(self) -> None:
        self._end(ended=self._is_complete)

    def release(self) -> None:
        """After the last event: the final response, which is empty, may still come."""
        self._end(ended=True)

    async def _read(self) -> bytes:
        """The bytes of the next response, which may be empty."""
        try:
            message = await self._call.read()
        except grpc.RpcError as exc:
            _raise_lost_cancellation()
            raise rpc_error(exc) from None
        if message is grpc.aio.EOF:
            _raise_lost_cancellation()
            raise UpstreamFailed("The upstream ended its answer prematurely.")
        if message is None:  # gRPC has logged the parse error
            raise UpstreamFailed("The upstream sent a malformed message.")
        if message.error_message:
            raise self._failed(triton_error(message.error_message))
        response = message.infer_response
        self._is_complete = response.parameters["triton_final_response"].bool_param
        return b"".join(response.raw_output_contents)

    def _failed(self, error: SlipstreamError) -> SlipstreamError:
        """`error`, after which Triton ends the call by itself."""
        self._is_complete = True
        return error

    def _end(self, *, ended: bool) -> None:
        """Cancels a call that still runs. A call whose last message has arrived ends by itself without delay: Triton
        2.51 leaks some 5 kB for each cancelled call. gRPC cancels a call without references, so the timer keeps one
        until the end."""
        if not ended:
            self._call.cancel()
            return
        timer = asyncio.get_running_loop().call_later(_END_S, self._call.cancel)
        self._call.add_done_callback(lambda _: timer.cancel())


async def _one(message: service_pb2.ModelInferRequest) -> Any:
    yield message


def _raise_lost_cancellation() -> None:
    """Cancelling a task while it reads cancels gRPC's own task that begins the call. That one ends without an error,
    and if the call has just failed, only its failure is raised."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
