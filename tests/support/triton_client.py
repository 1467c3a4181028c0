"""A small client of Slipstream's Triton model, by its tensor contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
import numpy as np
import tritonclient.grpc.aio as grpc_client
from tritonclient.grpc import InferInput

DATA_TYPES = {
    "text_input": ("BYTES", np.object_),
    "messages": ("BYTES", np.object_),
    "stop": ("BYTES", np.object_),
    "input_ids": ("INT32", np.int32),
    "resume_ids": ("INT32", np.int32),
    "max_tokens": ("INT32", np.int32),
    "top_k": ("INT32", np.int32),
    "draft_tokens": ("INT32", np.int32),
    "temperature": ("FP32", np.float32),
    "top_p": ("FP32", np.float32),
    "seed": ("INT64", np.int64),
    "stream": ("BOOL", np.bool_),
    "margins": ("BOOL", np.bool_),
    "prompt_ids": ("BOOL", np.bool_),
    "adaptive": ("BOOL", np.bool_),
    "stop_drafting": ("BOOL", np.bool_),
    "engine_facts": ("BOOL", np.bool_),
    "openai_request": ("UINT8", np.uint8),
}


_NUMBERS = {"prompt_tokens", "output_tokens", "drafted", "accepted", "steps", "engine_seconds"}


class Part(msgspec.Struct, kw_only=True):
    """One response. What drafts cost is None where the response leaves it out."""

    text_output: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    rejected_at: list[int] | None = None
    margins: list[float] | None = None
    prompt_ids: list[int] | None = None
    engine_seconds: float | None = None


class Answer(msgspec.Struct, kw_only=True):
    """All responses to one request, or the error that ended it."""

    parts: list[Part]
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text_output for part in self.parts)

    @property
    def token_ids(self) -> list[int]:
        return [token for part in self.parts for token in part.token_ids]

    @property
    def last(self) -> Part:
        return self.parts[-1]


class TritonModel:
    """Calls `model`. Inputs by name: scalars or lists; `messages` as Python values or as raw bytes."""

    # Goes on for ever under greedy decoding, with drafts that are all rejected: such an answer fills its context.
    ENDLESS: ClassVar[dict[str, Any]] = {"text_input": "a", "temperature": 0.0, "stream": True}

    def __init__(self, client: grpc_client.InferenceServerClient, model: str = "embedded") -> None:
        self._client = client
        self._model = model

    def open(self, **inputs: Any) -> Any:
        """The raw response iterator, which has `cancel()`."""
        tensors = [tensor(name, value) for name, value in inputs.items()]

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": self._model, "inputs": tensors}

        return self._client.stream_infer(requests())

    async def generate(self, **inputs: Any) -> Answer:
        """Every response up to the last."""
        parts: list[Part] = []
        async for result, error in self.open(**inputs):
            if error is not None:
                return Answer(parts=parts, error=error.message())
            parts.append(_part(result))
            if parts[-1].finish_reason:
                break
        return Answer(parts=parts)

    async def generate_all(self, requests: list[dict[str, Any]]) -> list[Answer]:
        """Several at once."""
        return await asyncio.gather(*(self.generate(**inputs) for inputs in requests))


def tensor(name: str, value: Any) -> InferInput:
    """The input `name` with `value`, as `TritonModel` takes it."""
    data_type, dtype = DATA_TYPES[name]
    if name == "messages" and not isinstance(value, (bytes, str)):
        value = json.dumps(value)
    values = value if isinstance(value, list) else [value]
    if data_type == "BYTES":
        values = [item.encode() if isinstance(item, str) else item for item in values]
    array = np.array(values, dtype=dtype)
    tensor = InferInput(name, list(array.shape), data_type)
    tensor.set_data_from_numpy(array)
    return tensor


def _part(result: Any) -> Part:
    values = {output.name: result.as_numpy(output.name).tolist() for output in result.get_response().outputs}
    for name in ("text_output", "finish_reason"):
        values[name] = values[name][0].decode()
    for name in _NUMBERS & values.keys():
        [values[name]] = values[name]
    return Part(**values)
