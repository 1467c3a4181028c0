"""Makes the engine's requests from a body: one for each choice of each prompt."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from slipstream_engine.contract.types import GenerationRequest, Penalties, SamplingParams
from slipstream_engine.openai.errors import bad_field
from slipstream_engine.openai.request import extra_arguments
from slipstream_engine.openai.request.body import Body, ChatBody, CompletionBody, Message
from slipstream_engine.openai.request.formats import grammar_of

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
COMPLETION_MAX_TOKENS = 16
"""The limit of a text completion without one, as in OpenAI's reference."""
MAX_BIAS = 100.0
MAX_LOGPROBS = 20
MAX_CHOICES = 1024
"""The limit of the choices of all prompts of a call."""
MAX_TOKENS = 2**31 - 1
_MAX_ID_DIGITS = 18


class PromptTokenizer(Protocol):
    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def render_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]: ...


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed body. The requests of one prompt follow each other. `echoes` are the texts of the
    prompts if the answer repeats them (`echo`)."""

    id: str
    requests: tuple[GenerationRequest, ...]
    choices: int
    is_chat: bool
    stream: bool
    include_usage: bool
    token_ids: bool
    echoes: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's longest draft, and its number of prompt and output tokens."""

    draft_length: int
    context_tokens: int


def chat_call(body: ChatBody, tokenizer: PromptTokenizer, limits: Limits, request_id: str) -> Call:
    """Raises `Refusal` or `RequestError`."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_field("max_completion_tokens", "and max_tokens differ; send one of them.")
    if body.top_logprobs and not body.logprobs:
        raise bad_field("top_logprobs", "requires logprobs to be true.")
    prompt = tokenizer.render_chat(_messages(body.messages))
    most = body.max_tokens
    if most is None:
        given = body.max_completion_tokens
        most = _between("max_completion_tokens", given, 1, MAX_TOKENS, default=limits.context_tokens)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _call(body, [prompt], limits, f"chatcmpl-{request_id}", most, "top_logprobs", logprobs, is_chat=True)


def completion_call(body: CompletionBody, tokenizer: PromptTokenizer, limits: Limits, request_id: str) -> Call:
    """Raises `Refusal` or `RequestError`."""
    if body.echo and body.logprobs is not None:
        raise bad_field("echo", "with logprobs is not supported: the prompt is not scored.")
    given = _prompts(body.prompt)
    if len(given) > MAX_CHOICES:  # before they are tokenized
        raise bad_field("prompt", f"has {len(given)} texts; {MAX_CHOICES} are the limit.")
    prompts = [tokenizer.encode(each) if isinstance(each, str) else each for each in given]
    most = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    call = _call(body, prompts, limits, f"cmpl-{request_id}", most, "logprobs", body.logprobs, is_chat=False)
    if not body.echo:
        return call
    return msgspec.structs.replace(
        call, echoes=tuple(each if isinstance(each, str) else tokenizer.decode(each) for each in given)
    )


def _call(
    body: Body,
    prompts: list[tuple[int, ...]],
    limits: Limits,
    name: str,
    most: int | None,
    logprobs_field: str,
    logprobs: int | None,
    *,
    is_chat: bool,
) -> Call:
    if body.stream_options is not None and not body.stream:
        raise bad_field("stream_options", "is only allowed with stream.")
    choices = _between("n", body.n, 1, MAX_CHOICES, default=1)
    if choices * len(prompts) > MAX_CHOICES:
        raise bad_field("prompt", f"has {len(prompts)} texts with n = {choices}; {MAX_CHOICES} choices are the limit.")
    shared = _shared(body, limits, most, logprobs_field, logprobs)
    if shared.resume_ids and choices * len(prompts) > 1:
        raise bad_field(f"vllm_xargs.{extra_arguments.RESUME}", "continues one answer, not several.")
    unique = secrets.token_hex(8)  # clients may repeat the names of their requests
    requests = [
        msgspec.structs.replace(
            shared,
            request_id=f"{unique}-{index}-{choice}",
            prompt_ids=prompt,
            sampling=msgspec.structs.replace(shared.sampling, seed=_seed(body.seed, choice)),
        )
        for index, prompt in enumerate(prompts)
        for choice in range(choices)
    ]
    return Call(
        id=name,
        requests=tuple(requests),
        choices=choices,
        is_chat=is_chat,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        token_ids=bool(body.return_token_ids),
    )


def _shared(
    body: Body, limits: Limits, most: int | None, logprobs_field: str, logprobs: int | None
) -> GenerationRequest:
    """The request of each choice, without its prompt, its seed and its name. Limits of a resumed answer count the new
    tokens; the engine's count all."""
    extra = extra_arguments.parse(body.vllm_xargs, limits.draft_length)
    resumed = len(extra.resume_ids)
    least = _between("min_tokens", body.min_tokens, 0, MAX_TOKENS, default=0)
    return GenerationRequest(
        request_id="",
        prompt_ids=(),
        resume_ids=extra.resume_ids,
        max_tokens=_between("max_tokens", most, 1, MAX_TOKENS, default=limits.context_tokens) + resumed,
        min_tokens=least + resumed if least else 0,
        sampling=_sampling(body),
        stop=_stop(body.stop),
        stop_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        draft_tokens=extra.draft_length,
        adaptive=extra.adaptive,
        protected=extra.protected,
        group=extra.request_class,
        penalties=_penalties(body),
        logit_bias=_bias(body.logit_bias),
        logprobs=None if logprobs is None else _between(logprobs_field, logprobs, 0, MAX_LOGPROBS, default=0),
        grammar=grammar_of(body),
    )


def _sampling(body: Body) -> SamplingParams:
    return SamplingParams(
        temperature=_within("temperature", body.temperature, 0.0, 1e6, default=1.0),
        top_p=_within("top_p", body.top_p, 0.0, 1.0, default=1.0),
        top_k=max(_between("top_k", body.top_k, -1, 2**31 - 1, default=0), 0),
        min_p=_within("min_p", body.min_p, 0.0, 1.0, default=0.0),
    )


def _seed(seed: int | None, choice: int) -> int:
    """The seed of one of several choices. -1 is a random seed, as in vLLM."""
    return secrets.randbits(63) if seed is None or seed == -1 else seed + choice


def _penalties(body: Body) -> Penalties | None:
    found = Penalties(
        presence=_within("presence_penalty", body.presence_penalty, -2.0, 2.0, default=0.0),
        frequency=_within("frequency_penalty", body.frequency_penalty, -2.0, 2.0, default=0.0),
        repetition=_within("repetition_penalty", body.repetition_penalty, 1e-6, 1e6, default=1.0),
    )
    return None if found == Penalties() else found


def _bias(bias: Mapping[str, float] | None) -> dict[int, float]:
    found = {}
    for token, value in (bias or {}).items():
        if not (token.isascii() and token.isdecimal() and len(token) <= _MAX_ID_DIGITS):
            raise bad_field("logit_bias", f"has the key {token!r:.40}; token ids are required.")
        found[int(token)] = _within(f"logit_bias.{token}", value, -MAX_BIAS, MAX_BIAS, default=0.0)
    return found


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _between(field: str, value: int | None, low: int, high: int, *, default: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise bad_field(field, f"is {value}; an integer from {low} to {high} is required.")
    return value


def _within(field: str, value: float | None, low: float, high: float, *, default: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:
        raise bad_field(field, f"is {value:g}; a number from {low:g} to {high:g} is required.")
    return value


def _messages(messages: list[Message] | None) -> list[dict[str, str]]:
    if not messages:
        raise bad_field("messages", "must have at least one message.")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Message, where: str) -> dict[str, str]:
    if message.role not in ROLES:
        raise bad_field(f"{where}.role", f"is {message.role!r:.40}; one of {', '.join(ROLES)} is required.")
    if message.tool_calls or message.tool_call_id:
        raise bad_field(f"{where}.tool_calls", "is not supported by this engine.")
    content = message.content
    if content is None and message.role == "assistant":
        content = ""
    if content is None:
        raise bad_field(f"{where}.content", "is null; a text is required.")
    if isinstance(content, list):
        for position, part in enumerate(content):
            if part.type != "text" or part.text is None:
                where = f"{where}.content[{position}]"
                raise bad_field(where, f"has the type {part.type!r:.40}; only text is supported.")
        content = "".join(part.text or "" for part in content)
    named = {} if message.name is None else {"name": message.name}
    role = "system" if message.role == "developer" else message.role  # its newer name, which few chat templates know
    return {"role": role, "content": content, **named}


def _prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | tuple[int, ...]]:
    if prompt is None or prompt == []:
        raise bad_field("prompt", "is missing; a text or token ids are required.")
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(item, int) for item in prompt):
        return [tuple(item for item in prompt if isinstance(item, int))]
    if any(isinstance(item, int) for item in prompt):
        raise bad_field("prompt", "mixes token ids with texts or lists.")
    return [item if isinstance(item, str) else tuple(item) for item in prompt if not isinstance(item, int)]
