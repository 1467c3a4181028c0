"""vLLM with Slipstream's plugin behind a LiteLLM proxy, over real sockets: it records what it gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.gateway.lossless.scripted_engine import FACTS
from tests.support.threaded_server import WebServer

TOKENS = 12
_FACTS = {**FACTS, "method": "ngram"}


class ScriptedVllm(WebServer):
    """Answers at once with `TOKENS` tokens, whose drafts are all accepted. `status` refuses every request, `protects`
    is that of the server's description."""

    def __init__(self, *, status: int = 200, protects: bool = False) -> None:
        self.status = status
        self.facts = {**_FACTS, "protects": protects}
        self.bodies: list[dict[str, Any]] = []
        self.stops = self.queries = 0
        super().__init__()

    def routes(self) -> Sequence[web.RouteDef]:
        return [
            web.get("/slipstream", self._describe),
            web.post("/slipstream/stop_drafting", self._stop),
            web.post("/v1/chat/completions", self._generate),
            web.post("/v1/completions", self._generate),
        ]

    async def _describe(self, _: web.Request) -> web.Response:
        self.queries += 1
        return web.json_response(self.facts)

    async def _stop(self, _: web.Request) -> web.Response:
        self.stops += 1
        return web.json_response({})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append({**body, "path": request.path})
        if self.status != 200:
            return web.json_response({"error": {"message": "refused", "type": "server_error"}}, status=self.status)
        is_chat = request.path.startswith("/v1/chat")
        if not body.get("stream"):
            text = "word " * TOKENS
            said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            kind = "chat.completion" if is_chat else "text_completion"
            return web.json_response(self._event(body, kind, said, finish="stop") | self._costs(body))
        return await self._stream(request, body, is_chat=is_chat)

    async def _stream(self, request: web.Request, body: dict[str, Any], *, is_chat: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        for index in range(TOKENS):
            said: dict[str, Any] = {"delta": {"content": "word "}} if is_chat else {"text": "word "}
            await self._send(response, self._event(body, kind, said, finish="stop" if index == TOKENS - 1 else None))
        if (body.get("stream_options") or {}).get("include_usage"):
            event = self._event(body, kind, {}) | {"choices": []} | self._costs(body)
            await self._send(response, event)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _event(
        self, body: dict[str, Any], kind: str, said: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": finish, **said}
        return {"id": "answer", "object": kind, "created": 1, "model": body["model"], "choices": [choice]}

    def _costs(self, body: dict[str, Any]) -> dict[str, Any]:
        """As vLLM with the plugin: its own counts, and those of OpenAI."""
        length = (body.get("vllm_xargs") or {}).get("slipstream_draft_length", _FACTS["max_draft_length"])
        steps = -(-(TOKENS - 1) // (length + 1)) if length else 0
        drafted, accepted = length * steps, TOKENS - 1 - steps if length else 0
        counts = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted, "num_spec_steps": steps}
        details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
        usage = {"prompt_tokens": 9, "completion_tokens": TOKENS, "total_tokens": 9 + TOKENS}
        return {
            "usage": {**usage, "completion_tokens_details": details},
            "metrics": {"speculative_decoding": counts},
        }
