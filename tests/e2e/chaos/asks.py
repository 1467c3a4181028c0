"""What the load asks: held-out prompts of the embedded pair, streamed and not, greedy and seeded, on both arms.

Every request has exactly one right answer: a sampled one names its seed. The draft length of speculative ones is
fixed, so that they draft whatever the load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from slipstream_engine.embedded.workload import workload

MODEL = "slipstream-embedded"
MAX_TOKENS = 64
PROMPTS = 3
_SEED = 606
_PLAIN = {"x-slipstream-mode": "plain"}
_SPECULATIVE = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "4"}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_GREEDY = {"temperature": 0}
_WARM = {"temperature": 0.8, "top_p": 0.95}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `resumable`: a stream of it that loses its server must go on as if nothing had happened; of
    another one, an explicit error event is as good."""

    name: str
    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    resumable: bool = True

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    def content(self) -> bytes:
        return json.dumps(self.body).encode()

    def stopping_at(self, stop: str) -> Ask:
        """The same with a stop string."""
        body = {**self.body, "stop": [stop]}
        return msgspec.structs.replace(self, name=f"{self.name}, stop string", body=body)


def chat(name: str, text: str, headers: Mapping[str, str], *, resumable: bool = True, **fields: Any) -> Ask:
    """A chat request of one user message."""
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS, **fields}
    # Nothing is learnt from the load: a decision must not depend on what ran before.
    sent = {"content-type": "application/json", "x-slipstream-learn": "off", **headers}
    return Ask(name=name, path="/v1/chat/completions", body=body, headers=sent, resumable=resumable)


def completion(name: str, text: str, headers: Mapping[str, str], **fields: Any) -> Ask:
    """A request for the continuation of a text."""
    asked = chat(name, text, headers, **fields)
    body = {"prompt": text, **{field: value for field, value in asked.body.items() if field != "messages"}}
    return msgspec.structs.replace(asked, path="/v1/completions", body=body)


def mixed(prompts: int = PROMPTS) -> tuple[Ask, ...]:
    """The load's requests, without those that a stop string ends: their strings come from these answers."""
    texts = [request.messages[-1]["content"] for request in workload(_SEED, prompts, {"summary": 0.6, "reply": 0.4})]
    return tuple(ask for index, text in enumerate(texts) for ask in _of(index, text))


def _of(index: int, text: str) -> Iterator[Ask]:
    seed = {"seed": 100 + index}
    yield chat(f"{index} greedy speculative stream", text, _SPECULATIVE, **_GREEDY, **_STREAM)
    yield chat(f"{index} greedy plain stream", text, _PLAIN, **_GREEDY, **_STREAM)
    yield chat(f"{index} greedy whole", text, {}, **_GREEDY)
    yield chat(f"{index} sampled speculative stream", text, _SPECULATIVE, **_WARM, **seed, **_STREAM)
    yield chat(f"{index} sampled plain stream", text, _PLAIN, **_WARM, **seed, **_STREAM)
    yield chat(f"{index} sampled speculative whole", text, _SPECULATIVE, **_WARM, **seed)
    # Odd tokens: characters of several bytes, whose halves come in chunks of their own.
    hot = {"temperature": 1.6, "seed": 130 + index}
    yield chat(f"{index} hot plain stream", f"{text}\n\n日本語 Ünïcödé", _PLAIN, **hot, **_STREAM)
    yield completion(f"{index} completion stream", text, {}, **_GREEDY, **_STREAM)
    yield chat(f"{index} two choices", text, _PLAIN, **_WARM, **seed, **_STREAM, n=2, resumable=False)
