"""vLLM with Slipstream's plugin, as far as a check sees it, over real sockets: for faults that a real one lacks.

An answer is `ANSWER` and its tokens are certain under the target, unless the server is told to misbehave.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.support.polling import PATIENCE_S
from tests.support.threaded_server import WebServer

PROMPT_IDS, ANSWER_IDS = [1, 2], [3, 4, 5, 6]
GARBAGE_IDS = [1001, 1002, 1003, 1004]
ANSWER = "three four five six"
FACTS: dict[str, Any] = {
    "plugin": "1.0",
    "vllm": "0.32.0",
    "method": "draft_model",
    "max_draft_length": 8,
    "acceptance": "equality",
    "scheduler": "sync",
    "counters": True,
    "limit": None,
}
DRAFTED = 8


class ScriptedEngine(WebServer):
    """A server in a thread.

    `facts` is its `/slipstream` document, None: it has no plugin. `refuse` maps the body of a completion to the status
    that refuses it, None: it is answered. `drafts` False: no request drafts, whatever it asks for. `garbage`: sampled
    answers with drafts are no answers of the target. `slow_s` is how long requests with drafts take. Chat requests are
    answered once `release` is set; one that begins with "break" ends its connection.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = dict(FACTS)
        self.refuse: Callable[[dict[str, Any]], int | None] = lambda body: None
        self.drafts = True
        self.garbage = False
        self.slow_s = 0.0
        self.release = threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.probes = 0
        self.chats = 0
        self.in_flight = 0
        self.most_in_flight = 0
        super().__init__()

    @property
    def draft_lengths(self) -> list[int]:
        """Those that completions asked for."""
        return [body["vllm_xargs"]["slipstream_draft_length"] for body in self.requests]

    def stop(self) -> None:
        self.release.set()
        super().stop()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/slipstream", self._describe),
            web.post("/slipstream/stop_drafting", self._stop_drafting),
            web.post("/v1/completions", self._complete),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response(self.facts or {}, status=200 if self.facts is not None else 404)

    async def _stop_drafting(self, request: web.Request) -> web.Response:
        return web.json_response({"stopped": 0})

    async def _chat(self, request: web.Request) -> web.Response:
        self.chats += 1
        if (await request.json())["messages"][0]["content"].startswith("break"):
            assert request.transport is not None
            request.transport.abort()
        await asyncio.to_thread(self.release.wait, PATIENCE_S)
        choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "choices": [choice]})

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if (status := self.refuse(body)) is not None:
                return web.json_response({"error": {"message": "scripted", "param": None}}, status=status)
            return web.json_response(await self._answer(body))
        finally:
            self.in_flight -= 1

    async def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if "prompt_logprobs" in body:
            return {"choices": [{"index": 0, "text": "", "prompt_logprobs": [_score(one) for one in body["prompt"]]}]}
        drafts = self.drafts and body.get("vllm_xargs", {}).get("slipstream_draft_length") != 0
        if drafts:
            await asyncio.sleep(self.slow_s)
        ids = GARBAGE_IDS if self.garbage and drafts and body["temperature"] > 0 else ANSWER_IDS
        choice: dict[str, Any] = {"index": 0, "text": ANSWER, "finish_reason": "length"}
        if body.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": PROMPT_IDS}
        drafted = DRAFTED if drafts else 0
        counts = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": 0, "num_spec_steps": drafted}
        usage = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": len(ids), "total_tokens": 6}
        return {"choices": [choice], "usage": usage, "metrics": {"speculative_decoding": counts}}


def _score(token: int) -> dict[str, Any]:
    if token in GARBAGE_IDS:
        return {"0": {"logprob": 0.0, "rank": 1}, str(token): {"logprob": -25.0, "rank": 5000}}
    return {str(token): {"logprob": 0.0, "rank": 1}}
