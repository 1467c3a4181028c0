"""HTTP requests through the pipe inside Triton, for `httpx`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc.aio as grpc_client
from tritonclient.grpc import InferInput


class PipeTransport(httpx.AsyncBaseTransport):
    """Sends requests to the Triton model `model` at `address` (`host:port` of its gRPC port)."""

    def __init__(self, address: str, model: str) -> None:
        self._client = grpc_client.InferenceServerClient(address)
        self._model = model

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        head = {"method": request.method, "path": request.url.raw_path.decode(), "headers": dict(request.headers)}
        data = json.dumps(head).encode() + b"\n" + await request.aread()
        tensor = InferInput("request", [len(data)], "UINT8")
        tensor.set_data_from_numpy(np.frombuffer(data, dtype=np.uint8))

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": self._model, "inputs": [tensor], "enable_empty_final_response": True}

        responses = self._client.stream_infer(requests())
        first = await _piece(responses)
        line, _, body = (first or b"").partition(b"\n")
        response = json.loads(line)
        return httpx.Response(response["status"], headers=response["headers"], stream=_Body(responses, body))

    async def aclose(self) -> None:
        await self._client.close()


class _Body(httpx.AsyncByteStream):
    """The rest of a response, of which `first` has arrived. Closing it early cancels the request."""

    def __init__(self, responses: Any, first: bytes) -> None:
        self._responses, self._first = responses, first

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        while (piece := await _piece(self._responses)) is not None:
            yield piece

    async def aclose(self) -> None:
        self._responses.cancel()


async def _piece(responses: Any) -> bytes | None:
    """The next piece; None after the last one."""
    async for result, error in responses:
        assert error is None, error
        response = result.get_response()
        if response.outputs:
            return bytes(result.as_numpy("response").tobytes())
        if response.parameters["triton_final_response"].bool_param:
            return None
    return None
