"""Values that the gateway's rooms hand each other. Immutable; no I/O, no clock, no framework.

Vocabulary: `design` terms only. Lengths are tokens, shares lie in [0, 1], times carry their unit in the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Arm(StrEnum):
    """How a request is decoded. `CONTROL` would have been speculative and was held back on purpose."""

    SPECULATIVE = "speculative"
    PLAIN = "plain"
    CONTROL = "control"


class Mode(StrEnum):
    """What a client may ask for in `x-slipstream-mode`."""

    AUTO = "auto"
    SPECULATIVE = "speculative"
    PLAIN = "plain"


class Priority(StrEnum):
    """Who waits when not everybody can be served: low first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a request, as far as the data plane needs it. `key_id` is the public part of a key, never its secret;
    empty: nobody was asked for one."""

    key_id: str = ""
    priority: Priority = Priority.NORMAL


ANONYMOUS = Caller()


class TaskType(StrEnum):
    """What a request wants done: the first half of a request class."""

    SUMMARIZATION = "summarization"
    EXTRACTION = "extraction"
    CODE = "code"
    TRANSLATION = "translation"
    CLASSIFICATION = "classification"
    SHORT_QA = "short_qa"
    MATH_REASONING = "math_reasoning"
    CREATIVE_WRITING = "creative_writing"
    OPEN_CHAT = "open_chat"
    REWRITING = "rewriting"
    UNKNOWN = "unknown"


class LengthBin(StrEnum):
    """Expected output length: short ≤ 40 tokens, medium 41–128, long > 128: the second half of a class."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @classmethod
    def of(cls, tokens: float) -> LengthBin:
        """The bin that `tokens` falls into."""
        if tokens <= SHORT_MAX_TOKENS:
            return cls.SHORT
        return cls.MEDIUM if tokens <= MEDIUM_MAX_TOKENS else cls.LONG


SHORT_MAX_TOKENS = 40
MEDIUM_MAX_TOKENS = 128


class Reason(StrEnum):
    """Why a decision came out as it did: one code per rule, stable, in headers, spans, metrics and /v1/route."""

    KILL_SWITCH = "kill_switch"
    POLICY_DISABLED = "policy_disabled"
    NO_POLICY = "no_policy"
    PAIR_NOT_READY = "pair_not_ready"
    ROLLED_BACK = "rolled_back"
    STATISTICS_STALE = "statistics_stale"
    NO_DRAFT = "no_draft"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CLIENT_ASKED = "client_asked"
    CLASS_DISABLED = "class_disabled"
    CLASS_ENABLED = "class_enabled"
    UNKNOWN_CLASS = "unknown_class"
    SHORT_OUTPUT = "short_output"
    RARE_TOKENS = "rare_tokens"
    HOT_SAMPLING = "hot_sampling"
    LONG_CONTEXT = "long_context"
    BREAK_EVEN = "break_even"
    COST = "cost"
    ROLLOUT = "rollout"
    HOLD_BACK = "hold_back"
    EXPLORATION = "exploration"
    SPECULATION_PAYS = "speculation_pays"
    SPECULATIVE_UNAVAILABLE = "speculative_unavailable"
    ENGINE_CANNOT = "engine_cannot"
    ENGINE_NOT_LOSSLESS = "engine_not_lossless"
    ENGINE_UNVERIFIED = "engine_unverified"
    PRESSURE = "pressure"


class Capability(StrEnum):
    """What a server may do for requests of one kind; a check of the engine can take it away, per server."""

    GREEDY_SPECULATION = "greedy_speculation"
    SAMPLED_SPECULATION = "sampled_speculation"


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """Why a server may not use a capability: a reason code and one sentence."""

    reason: Reason
    detail: str


class Endpoint(StrEnum):
    """Which OpenAI endpoint a request came in by."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"


RESPONSES_FEATURE = "/v1/responses"
"""The name of the endpoint among `GenerationRequest.features`: backends have it or not, as they honour parameters."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One chat message; text parts are already joined into `content`."""

    role: str
    content: str
    name: str | None = None


class PromptSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much a request gives a model to read, all of its prompts together. `text_bytes` are those of the whole body,
    with tools, schemas and what else may be rendered into a prompt, but for what is counted apart: the `token_ids` of
    prompts, and the parts that are `media` (images, audio, video)."""

    text_bytes: int = 0
    token_ids: int = 0
    media: int = 0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI request, parsed and validated once at the edge.

    `messages` for chat and responses, `prompt` (text or token ids) for completions: the first one where there are
    several. `prompt_size` and `choices` cover all prompts: `choices` counts the answers that are generated, one for
    each prompt and choice (`n`, or `best_of` where it is larger). `seed` and `max_tokens` are None where the client
    left them out. `features` names the optional parameters in use that a backend must be able to
    honour (`"logprobs"`, `"logit_bias"`, `"tools"`, `"n"`, …), by their OpenAI or vLLM name, and the endpoint
    `RESPONSES_FEATURE` where the request came in by it: not every backend has it. `mode` and `draft_length` are
    the client's wish, which a policy may grant; `learn` False keeps the outcome out of the estimates. `raw` is the
    body as it came, for upstreams that speak the same protocol.
    """

    endpoint: Endpoint
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    choices: int = 1
    prompt_size: PromptSize = PromptSize()
    stream: bool = False
    include_usage: bool = False
    structured_output: bool = False
    features: frozenset[str] = frozenset()
    mode: Mode = Mode.AUTO
    draft_length: int | None = None
    learn: bool = True
    raw: bytes = b""


class RequestProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What the classifier expects of a request, before anything ran.

    `evidence` names what spoke for it, in plain words, for the explain endpoint. `confidence` in [0, 1] belongs to
    `task`; below the policy's floor the class counts as unknown. `long_probability` is that of more than 128 output
    tokens, `rare_probability` that of an answer full of rare tokens,
    `speculate_probability` that of a long answer that is not: what speculation pays for.
    """

    task: TaskType
    expected_output_tokens: float
    rare_token_share: float
    structured_output: bool
    prompt_tokens: int
    confidence: float
    long_probability: float = 0.0
    rare_probability: float = 0.0
    speculate_probability: float = 0.0
    evidence: tuple[str, ...] = ()

    @property
    def length(self) -> LengthBin:
        return LengthBin.of(self.expected_output_tokens)

    @property
    def request_class(self) -> str:
        """`task/length`, e.g. `summarization/long`: the unit of measurement and of rollback."""
        return f"{self.task}/{self.length}"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request goes and why. `draft_length` is 0 exactly when `arm` is not speculative.

    `detail` says the reason in one sentence; `numbers` holds every figure that led there. `saving_s` is the predicted
    saving of the best draft length, negative where speculation loses; None where no forecast was asked. `unconditional`
    says that the request would speculate whatever its neighbours do, so that others may count on it.
    """

    arm: Arm
    reason: Reason
    request_class: str
    draft_length: int
    detail: str
    numbers: Mapping[str, float | int | str | bool]
    saving_s: float | None = None
    unconditional: bool = False


def speculation_of(request: GenerationRequest) -> Capability:
    """The capability that a server needs to speculate on `request`."""
    return Capability.SAMPLED_SPECULATION if request.temperature > 0 else Capability.GREEDY_SPECULATION
