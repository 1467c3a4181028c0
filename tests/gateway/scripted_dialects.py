"""SGLang, TensorRT-LLM (`trtllm-serve`) and llama.cpp (`llama-server`) as scripts over real sockets.

Their answers have the shapes that their code writes, in the versions that `slipstream_core.manifest.dialects` names:
which parameters are refused or ignored, which fields are null or left out, and where the draft counts are. Every answer
is `WORDS`, and its tokens are certain under the target. A server that speculates says that four steps verified four
draft tokens each and accepted seven in all.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from aiohttp import web

from tests.support.manifests import arm, external, pair_yaml
from tests.support.threaded_server import WebServer

Json = dict[str, Any]

WORDS = [f"w{number} " for number in range(12)]
PROMPT_IDS, ANSWER_IDS = [1, 2, 3], list(range(10, 22))
DRAFT_TOKENS, STEPS, ACCEPTED = 4, 4, 7
DETAILS = {
    "spec_accept_rate": ACCEPTED / (STEPS * DRAFT_TOKENS),
    "spec_accept_length": len(WORDS) / STEPS,
    "spec_cap_length": 0.0,
    "spec_block_accept_length": 0.0,
    "spec_num_correct_drafts": ACCEPTED,
    "spec_num_proposed_drafts": STEPS * DRAFT_TOKENS,
    "spec_verify_ct": STEPS,
    "spec_correct_drafts_histogram": [1, 1, 1, 0, 1],
    "spec_cap_lens_histogram": [],
}
TOKENS_PER_PASS = len(WORDS) / (1 + STEPS)


class ScriptedDialect(WebServer):
    """A server in a thread. `ready` can be changed while it runs."""

    ready_path: ClassVar[str]

    def __init__(self, *, speculates: bool) -> None:
        self.speculates = speculates
        self.ready = True
        self.requests: list[Json] = []
        super().__init__()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(self.ready_path, self._readiness),
            web.post("/v1/completions", self._completion),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def _readiness(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body: Json = await request.json()
        self.requests.append(body)
        if unknown := self.refused(body, chat=True):
            return web.json_response({"error": f"1 validation error: {unknown}: extra_forbidden"}, status=400)
        if not body.get("stream"):
            return web.json_response(self.chat(body))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in self.chunks(body):
            await response.write(event)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _completion(self, request: web.Request) -> web.Response:
        body: Json = await request.json()
        self.requests.append(body)
        if unknown := self.refused(body, chat=False):
            return web.json_response({"error": f"1 validation error: {unknown}: extra_forbidden"}, status=400)
        return web.json_response(self.completion(body))

    def refused(self, body: Json, *, chat: bool) -> list[str]:
        """The parameters that the server refuses."""
        return []

    @abstractmethod
    def chat(self, body: Json) -> Json: ...

    @abstractmethod
    def completion(self, body: Json) -> Json: ...

    @abstractmethod
    def chunks(self, body: Json) -> Iterator[bytes]:
        """The events of a chat, but for the last."""


def usage(**more: Any) -> Json:
    total = len(PROMPT_IDS) + len(WORDS)
    return {"prompt_tokens": len(PROMPT_IDS), "total_tokens": total, "completion_tokens": len(WORDS)} | more


def event(value: Json) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


class ScriptedSglang(ScriptedDialect):
    """SGLang 0.5.23. Unknown parameters are ignored."""

    ready_path = "/ready"
    _usage = usage(prompt_tokens_details=None, reasoning_tokens=0, completion_tokens_details=None)

    def chat(self, body: Json) -> Json:
        message = {"role": "assistant", "content": "".join(WORDS), "reasoning_content": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "matched_stop": 2}
        return self._whole(body, "chat.completion", choice)

    def completion(self, body: Json) -> Json:
        choice = {
            "index": 0,
            "text": "".join(WORDS),
            "logprobs": None,
            "finish_reason": "length",
            "matched_stop": None,
        }
        if body.get("return_token_ids"):
            ids = ANSWER_IDS
            choice |= {"token_ids": ids, "prompt_token_ids": PROMPT_IDS}
        return self._whole(body, "text_completion", choice)

    def chunks(self, body: Json) -> Iterator[bytes]:
        yield self._chunk(body, [self._choice({"role": "assistant", "content": "", "reasoning_content": None})])
        for word in WORDS:
            yield self._chunk(body, [self._choice({"reasoning_content": None, "content": word})])
        yield self._chunk(body, [self._choice({"reasoning_content": None}, finish="stop")])
        if extension := self._extension(body):
            yield self._chunk(body, [], usage=None, sglext=extension)
        if (body.get("stream_options") or {}).get("include_usage"):
            yield self._chunk(body, [], usage=self._usage)

    def _whole(self, body: Json, kind: str, choice: Json) -> Json:
        extension = self._extension(body)
        head = {"id": "5f3e", "object": kind, "created": 1, "model": body["model"], "choices": [choice]}
        return head | {"usage": self._usage, "metadata": None} | ({"sglext": extension} if extension else {})

    def _extension(self, body: Json) -> Json:
        found: Json = {}
        if body.get("return_cached_tokens_details"):
            found["cached_tokens_details"] = {"device": 2, "host": 0}
        if body.get("return_spec_tokens_details") and self.speculates:
            found["spec_tokens_details"] = DETAILS
        return found

    def _chunk(self, body: Json, choices: list[Json], **more: Any) -> bytes:
        head = {"id": "5f3e", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        return event(head | {"choices": choices} | more)

    def _choice(self, delta: Json, finish: str | None = None) -> Json:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}


_BOTH = (
    "model best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream "
    "stream_options temperature top_p user lora_request prompt_ignore_length use_beam_search top_k top_p_min min_p "
    "repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos min_tokens "
    "skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens thinking_token_budget add_special_tokens "
    "response_format disaggregated_params priority conversation_params"
)
_OF_CHATS = (
    "messages prompt_token_ids prompt_token_ids_b64 top_logprobs max_completion_tokens tools tool_choice "
    "parallel_tool_calls reasoning_effort thinking add_generation_prompt documents chat_template chat_template_kwargs "
    "injected_chat_template_kwargs media_io_kwargs cache_salt agent_hierarchy mm_processor_kwargs"
)
_OF_COMPLETIONS = "prompt suffix return_context_logits detokenize"
_PENALTIES = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}


class ScriptedTrtllm(ScriptedDialect):
    """TensorRT-LLM. Unknown parameters are refused; while it speculates, penalties are as well."""

    ready_path = "/health"
    _usage = usage(prompt_tokens_details={"cached_tokens": 0})

    def refused(self, body: Json, *, chat: bool) -> list[str]:
        known = {*_BOTH.split(), *(_OF_CHATS if chat else _OF_COMPLETIONS).split()}
        found = sorted(body.keys() - known)
        if self.speculates:
            found += [name for name, neutral in _PENALTIES.items() if body.get(name, neutral) != neutral]
        return found

    def chat(self, body: Json) -> Json:
        message = {
            "role": "assistant",
            "content": "".join(WORDS),
            "reasoning_content": None,
            "reasoning": None,
            "tool_calls": [],
        }
        return self._whole(body, "chat.completion", {"message": message, "mm_embedding_handle": None})

    def completion(self, body: Json) -> Json:
        choice = {"text": "".join(WORDS), "token_ids": None, "context_logits": None}
        return self._whole(body, "text_completion", choice)

    def chunks(self, body: Json) -> Iterator[bytes]:
        first = {"index": 0, "delta": {"role": "assistant"}}
        yield self._chunk(body, [first]).replace(b"}\n\n", b"} \n\n")  # a space that its code writes there
        for index, word in enumerate(WORDS):
            tokens_per_pass = self._tokens_per_pass if index == len(WORDS) - 1 else 1.0 + index / 100
            choice = {"index": 0, "delta": {"content": word}, "avg_decoded_tokens_per_iter": tokens_per_pass}
            yield self._chunk(body, [choice | ({"finish_reason": "stop"} if index == len(WORDS) - 1 else {})])
        options = body.get("stream_options")
        if options is not None and options.get("include_usage", True):
            yield self._chunk(body, [], usage=self._usage)

    @property
    def _tokens_per_pass(self) -> float:
        return TOKENS_PER_PASS if self.speculates else 1.0

    def _whole(self, body: Json, kind: str, choice: Json) -> Json:
        choice = {"index": 0, "logprobs": None, "finish_reason": "stop", "stop_reason": None} | choice
        choice |= {"disaggregated_params": None, "avg_decoded_tokens_per_iter": self._tokens_per_pass}
        head = {"id": "cmpl-7", "object": kind, "created": 1, "model": body["model"], "choices": [choice]}
        return head | {"usage": self._usage, "prompt_token_ids": None}

    def _chunk(self, body: Json, choices: list[Json], **more: Any) -> bytes:
        head = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        return event(head | {"choices": choices} | more)


class ScriptedLlamaCpp(ScriptedDialect):
    """llama.cpp. Unknown parameters are ignored. The last event of a stream has the timings, and the usage if it was
    requested."""

    ready_path = "/health"
    _usage = usage(prompt_tokens_details={"cached_tokens": 0})

    def chat(self, body: Json) -> Json:
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"finish_reason": "stop", "index": 0, "message": message}
        return self._object(body, "chat.completion", [choice], usage=self._usage, timings=self._timings)

    def completion(self, body: Json) -> Json:
        choice = {"text": "".join(WORDS), "index": 0, "logprobs": None, "finish_reason": "length"}
        return self._object(body, "text_completion", [choice], usage=self._usage, timings=self._timings)

    def chunks(self, body: Json) -> Iterator[bytes]:
        yield self._chunk(body, {"role": "assistant", "content": None})
        for word in WORDS:
            yield self._chunk(body, {"content": word})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield self._chunk(body, {}, finish="stop")
            last = self._object(body, "chat.completion.chunk", [], usage=self._usage, timings=self._timings)
            yield event(last)
        else:
            yield self._chunk(body, {}, finish="stop", timings=self._timings)

    @property
    def _timings(self) -> Json:
        drafts = {"draft_n": STEPS * DRAFT_TOKENS, "draft_n_accepted": ACCEPTED}
        base = {
            "cache_n": 0,
            "prompt_n": len(PROMPT_IDS),
            "prompt_ms": 12.5,
            "prompt_per_token_ms": 4.166666666666667,
            "prompt_per_second": 240.0,
            "predicted_n": len(WORDS),
            "predicted_ms": 96.0,
            "predicted_per_token_ms": 8.0,
            "predicted_per_second": 125.0,
        }
        return base | (drafts if self.speculates else {})

    def _chunk(self, body: Json, delta: Json, *, finish: str | None = None, **more: Any) -> bytes:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        return event(self._object(body, "chat.completion.chunk", [choice], **more))

    def _object(self, body: Json, kind: str, choices: list[Json], **more: Any) -> Json:
        head = {"choices": choices, "created": 1, "model": body["model"], "system_fingerprint": "b10798-aa6192d3"}
        return head | {"object": kind, "id": "chatcmpl-q7Yw"} | more


DIALECTS: dict[str, type[ScriptedDialect]] = {
    "sglang": ScriptedSglang,
    "trtllm": ScriptedTrtllm,
    "llamacpp": ScriptedLlamaCpp,
}


def pair_text(dialect: str, *, plain: str, speculative: str) -> str:
    """Text of a manifest for the model `acme` in front of one server for each arm."""
    arms = (arm(url, model="up", more=f", dialect: {dialect}") for url in (plain, speculative))
    policy = ", allowClientMode: true, parityShare: 0"
    return pair_yaml(external(*arms), f"maxDraftTokens: {DRAFT_TOKENS}", policy=policy)
