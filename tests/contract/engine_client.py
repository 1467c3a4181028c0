"""A client of one engine by its contract: OpenAI's completions, and the control routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PROMPT = (
    "Summarise this call for the CRM.\n\nAgent: Hello, this is Clara, how can I help you?\n"
    "Customer: My name is Mara Osterova. I was charged twice for my coffee machine.\n"
    "Agent: I am reversing the second payment now.\nCustomer: Thank you."
)
MESSAGES = [{"role": "user", "content": PROMPT}]
TIMEOUT_S = 300.0


class Answer(NamedTuple):
    """A whole answer, or a stream put together. `body` is the JSON object with the usage."""

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    finish: tuple[str, ...]
    body: dict[str, Any]

    @property
    def text(self) -> str:
        [text] = self.texts
        return text

    @property
    def ids(self) -> tuple[int, ...]:
        [ids] = self.token_ids
        return ids

    @property
    def counts(self) -> dict[str, Any]:
        return dict(self.body["metrics"]["speculative_decoding"])


class Refused(Exception):
    """The engine answered with an error. `error` is OpenAI's object."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}: {response.text}")
        self.status = response.status_code
        self.error: dict[str, Any] = response.json()["error"]

    def names(self, field: str) -> bool:
        return self.error.get("param") == field or field in self.error["message"].lower()


class Engine:
    """The engine behind `http`, which serves `model`. `facts` is its `GET /slipstream`."""

    def __init__(self, http: httpx.AsyncClient, model: str, facts: Mapping[str, Any]) -> None:
        self.http, self.model, self.facts = http, model, facts

    @classmethod
    async def of(cls, http: httpx.AsyncClient) -> Engine:
        models = (await http.get("/v1/models")).json()["data"]
        return cls(http, models[0]["id"], (await http.get("/slipstream")).json())

    @property
    def longest(self) -> int:
        return int(self.facts["max_draft_length"])

    async def ask(self, path: str = CHAT, *, length: int | None = None, **more: Any) -> Answer:
        """One answer. Raises: `Refused`."""
        response = await self.http.post(path, json=self.body(path, length=length, **more))
        if response.status_code != 200:
            raise Refused(response)
        body = response.json()
        choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
        return Answer(
            tuple(choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices),
            tuple(tuple(choice.get("token_ids") or ()) for choice in choices),
            tuple(choice["finish_reason"] for choice in choices),
            body,
        )

    @asynccontextmanager
    async def stream(
        self, path: str = CHAT, *, length: int | None = None, **more: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a running answer, without `[DONE]`. Leaving the context disconnects."""
        body = self.body(path, length=length, stream=True, **more)
        async with self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise Refused(response)
            yield _events(response)

    async def streamed(self, path: str = CHAT, **more: Any) -> Answer:
        """One answer of one choice, put together from its events."""
        text, ids, finish, last = "", [], "", {}
        async with self.stream(path, stream_options={"include_usage": True}, **more) as events:
            async for event in events:
                last = event
                for choice in event["choices"]:
                    text += (choice["delta"].get("content") or "") if path == CHAT else choice["text"]
                    ids += choice.get("token_ids") or ()
                    finish = choice["finish_reason"] or finish
        return Answer((text,), (tuple(ids),), (finish,), last)

    def body(self, path: str, *, length: int | None = None, **more: Any) -> dict[str, Any]:
        prompt: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
        if length is not None:
            more["vllm_xargs"] = {"slipstream_draft_length": length, **more.get("vllm_xargs", {})}
        return {"model": self.model, "temperature": 0, "max_tokens": 48, "return_token_ids": True, **prompt, **more}

    async def cancel_streams(self, path: str, **more: Any) -> None:
        """Streams of twelve tokens whose clients leave at any moment: cancelling races with the last response."""

        async def cancel_after(parts: int) -> None:
            seen = 0
            async with self.stream(path, max_tokens=12, temperature=1.0, length=parts % 5, **more) as events:
                async for _ in events:
                    seen += 1
                    if seen == parts:
                        return

        for turn in range(4):
            await asyncio.gather(*(cancel_after(1 + (number + turn) % 12) for number in range(24)))

    async def set_limit(self, limit: object) -> Any:
        response = await self.http.put("/slipstream/limit", json={"limit": limit})
        if response.status_code != 200:
            raise Refused(response)
        return response.json()["limit"]

    async def stop_drafting(self) -> int:
        """The number of running and waiting requests, which draft no more."""
        return int((await self.http.post("/slipstream/stop_drafting")).json()["stopped"])


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Raises: AssertionError if the stream does not end with `[DONE]`."""
    done = False
    async for line in response.aiter_lines():
        assert not done or not line, f"after [DONE]: {line}"
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    assert done
