"""The shapes of the gateway's answers. The gateway assembles them from prebuilt pieces and has no types for them.

`tests/docs/test_openapi.py` holds real answers against these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from slipstream_core.types import Arm, Reason

Count = Annotated[int, msgspec.Meta(ge=0)]


class PredictionTokens(msgspec.Struct):
    """OpenAI's fields for predicted outputs: draft tokens that the target accepted, and those that it rejected."""

    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count


class SpeculationUsage(msgspec.Struct):
    """Figures without a field in OpenAI's usage: the seed, the draft length (0: plain), the target's passes after the
    prompt, and the number of passes that first rejected a draft token at each position. The same request with `seed`
    gets the same answer from servers with the same `system_fingerprint`; choice `i` has the answer of a request for one
    choice with `seed + i`. `seed` is null if the server chose it. `engine_seconds` is the engine's time that
    the answer took: of each pass, the share of its rows in all rows. `draft` is the draft's name where the engine has
    several. `resumed` has a cause for each time that another
    server continued the answer."""

    seed: int | None
    draft_length: Count
    target_steps: Count
    rejected_at: list[Count]
    engine_seconds: float | None
    draft: str | msgspec.UnsetType | None = msgspec.UNSET
    resumed: list[str] | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct):
    """Tokens of the whole answer. The usage of an OpenAI-compatible upstream is forwarded unchanged."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    completion_tokens_details: PredictionTokens | msgspec.UnsetType | None = msgspec.UNSET
    slipstream: SpeculationUsage | msgspec.UnsetType = msgspec.UNSET


class AnswerMessage(msgspec.Struct):
    """The model's message. `content` is null if an upstream answers with tool calls."""

    role: str
    content: str | None


class ChatChoice(msgspec.Struct):
    """One of the answer's `n` choices."""

    index: Count
    message: AnswerMessage
    finish_reason: str | None


class TextChoice(msgspec.Struct):
    """One of the answer's `n` choices."""

    index: Count
    text: str
    finish_reason: str | None


class ChatCompletion(msgspec.Struct):
    """A whole answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    system_fingerprint: str | msgspec.UnsetType | None = msgspec.UNSET
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TextCompletion(msgspec.Struct):
    """A whole answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[TextChoice]
    system_fingerprint: str | msgspec.UnsetType | None = msgspec.UNSET
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class ResponseUsage(msgspec.Struct):
    """Tokens of the whole answer, as the server counted them."""

    input_tokens: Count
    output_tokens: Count
    total_tokens: Count


class Response(msgspec.Struct):
    """A whole answer of `/v1/responses`, unchanged except for the model's name."""

    id: str
    object: Literal["response"]
    created_at: float
    model: str
    status: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct):
    """A model of the current manifest, in the form of vLLM's list. `root` is its name, `parent` the model of a LoRA
    adapter. `max_model_len` is the maximum of prompt and answer in tokens: the smallest of the model's servers, null if
    none of them reports it."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    root: str
    parent: str | None
    max_model_len: Count | None


class ModelList(msgspec.Struct):
    """All models of the current manifest."""

    object: Literal["list"]
    data: list[Model]


class Error(msgspec.Struct):
    """The error in one line. `param` is the field at fault, `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(msgspec.Struct):
    """OpenAI's error object, on every path."""

    error: Error


class Live(msgspec.Struct):
    """The process runs."""

    status: Literal["live"]


class Ready(msgspec.Struct):
    """Whether requests can be served, and the configuration in use. `models` has the problems, by model."""

    status: Literal["ready", "not_ready"]
    configuration: str
    generation: str
    connected: bool
    age_s: float
    models: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Explained(msgspec.Struct):
    """The decision for a request, without running it. If the caller may see them, further fields have every number
    behind the decision: see `slipstream route`."""

    pair: str
    arm: Arm
    reason: Reason


REQUEST_HEADERS = {
    "x-request-id": "The request's id, up to 128 printable ASCII characters. The answer returns it. Without it, the "
    "gateway generates one.",
    "x-slipstream-mode": "`auto` (the default), `speculative` or `plain`.",
    "x-slipstream-draft-length": "The draft length to speculate with.",
    "x-slipstream-capture": "`allow` or `deny`: whether the answer may be kept for training drafts, where the policy "
    "captures answers.",
    "x-slipstream-learn": "`off` keeps the outcome out of all estimates and comparisons, and the request out of "
    "hold-back and exploration.",
    "x-request-timeout": "How many seconds the client waits (a decimal number). After them the answer is 504, and all "
    "work for the request is cancelled.",
    "traceparent": "W3C trace context: the request's span becomes its child.",
}

RESPONSE_HEADERS = {
    "x-request-id": "The request's id.",
    "x-slipstream-arm": "How the answer was decoded: `speculative`, `plain`, or `control` (held back).",
    "x-slipstream-class": "The request class: task and expected length, such as `extraction/short`.",
    "x-slipstream-reason": "The reason for the decision, as a code: see the reference of reasons.",
    "x-slipstream-draft-length": "Maximum number of draft tokens per step; 0 for plain decoding.",
    "x-slipstream-resumable": "On streams: whether another server can continue this stream if its server dies.",
    "x-slipstream-revision": "The new revision of the pair whose server answered. Only while it is compared with the "
    "serving one, and only for its answers.",
    "x-slipstream-saving-ms": "The predicted saving of the best draft length; negative where speculation is predicted "
    "to lose. With `speculation_may_pay`, only the saving's upper bound exceeds the margin. Only after a forecast, and "
    "once an answer of these servers has been timed.",
    **{
        f"x-ratelimit-{kind}-{what}": f"{text} {what}, as OpenAI writes it. Only where the key has that limit."
        for what in ("requests", "tokens")
        for kind, text in (
            ("limit", "The key's limit per minute on"),
            ("remaining", "The rest of the key's limit on"),
            ("reset", "The time until the whole limit is available again, for"),
        )
    },
}
