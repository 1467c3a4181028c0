"""HTTP requests through the pipe inside Triton, for `httpx`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc.aio as grpc_client
from tritonclient.grpc import InferInput


class PipeTransport(httpx.AsyncBaseTransport):
    """Sends requests to the Triton model `model` at `address` (`host:port` of its gRPC port). A Triton error is a
    `httpx.RemoteProtocolError` with its text."""

    def __init__(self, address: str, model: str) -> None:
        self._client = grpc_client.InferenceServerClient(address)
        self._model = model

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, headers = request.url.raw_path.decode(), dict(request.headers)
        responses = self.send([piped(request.method, path, await request.aread(), headers)])
        line, _, body = (await anext(responses)).partition(b"\n")
        response = json.loads(line)
        return httpx.Response(response["status"], headers=response["headers"], stream=_Body(responses, body))

    async def send(self, requests: list[bytes]) -> AsyncIterator[bytes]:
        """The pieces of the responses to all `requests`, which one gRPC stream brings in their order. Closing the
        iterator early cancels them."""
        responses = self._client.stream_infer(self._messages(requests))
        left = len(requests)
        try:
            async for result, error in responses:
                if error is not None:
                    raise httpx.RemoteProtocolError(error.message())
                response = result.get_response()
                if response.outputs:
                    yield bytes(result.as_numpy("response").tobytes())
                left -= response.parameters["triton_final_response"].bool_param
        finally:
            if left:
                responses.cancel()

    async def aclose(self) -> None:
        await self._client.close()

    async def _messages(self, requests: list[bytes]) -> AsyncIterator[dict[str, Any]]:
        for data in requests:
            tensor = InferInput("request", [len(data)], "UINT8")
            tensor.set_data_from_numpy(np.frombuffer(data, dtype=np.uint8))
            yield {"model_name": self._model, "inputs": [tensor], "enable_empty_final_response": True}


def piped(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A request in the form of the tensor."""
    return json.dumps({"method": method, "path": path, "headers": headers or {}}).encode() + b"\n" + body


class _Body(httpx.AsyncByteStream):
    """The rest of a response, of which `first` has arrived. Closing it early cancels the request."""

    def __init__(self, responses: AsyncIterator[bytes], first: bytes) -> None:
        self._responses, self._first = responses, first

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        async for piece in self._responses:
            yield piece

    async def aclose(self) -> None:
        await self._responses.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
