"""Values that the gateway's packages exchange. Immutable; no I/O, no clock, no framework.

Vocabulary: that of the design. Lengths are tokens, shares are in [0, 1], times have their unit in the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slipstream_core.restricted_parameters import RestrictedUse


class Arm(StrEnum):
    """The way a request is decoded. `CONTROL` would have been speculative and was held back on purpose."""

    SPECULATIVE = "speculative"
    PLAIN = "plain"
    CONTROL = "control"


class Mode(StrEnum):
    """The values of `x-slipstream-mode`."""

    AUTO = "auto"
    SPECULATIVE = "speculative"
    PLAIN = "plain"


class Priority(StrEnum):
    """The order of service under overload: low waits longest."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request, as far as the data plane needs it. `key_id` is the public part of a key, never its
    secret; empty without access control."""

    key_id: str = ""
    priority: Priority = Priority.NORMAL


ANONYMOUS = Caller()


class TaskType(StrEnum):
    """The kind of task in a request: the first half of a request class."""

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
        """The bin that contains `tokens`."""
        if tokens <= SHORT_MAX_TOKENS:
            return cls.SHORT
        return cls.MEDIUM if tokens <= MEDIUM_MAX_TOKENS else cls.LONG


SHORT_MAX_TOKENS = 40
MEDIUM_MAX_TOKENS = 128


class Reason(StrEnum):
    """The reason of a decision: one stable code per rule, in headers, spans, metrics and /v1/route."""

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
    SPECULATION_MAY_PAY = "speculation_may_pay"
    SPECULATIVE_UNAVAILABLE = "speculative_unavailable"
    ENGINE_CANNOT = "engine_cannot"
    ENGINE_NOT_LOSSLESS = "engine_not_lossless"
    ENGINE_UNVERIFIED = "engine_unverified"
    PRESSURE = "pressure"


BY_SAVING = frozenset({Reason.SPECULATION_PAYS, Reason.SPECULATION_MAY_PAY})
"""The reasons of requests that speculate for their predicted saving: it is above the margin, or may be."""
TREATMENT = BY_SAVING | {Reason.CLASS_ENABLED}
"""The reasons of requests that are compared with the control."""


class Capability(StrEnum):
    """A kind of requests that a server may speculate on; a check of the engine can withdraw it, per server."""

    GREEDY_SPECULATION = "greedy_speculation"
    SAMPLED_SPECULATION = "sampled_speculation"


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a server may not use a capability: a reason code and one sentence."""

    reason: Reason
    detail: str


class Endpoint(StrEnum):
    """The OpenAI endpoint that received a request."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"


RESPONSES_FEATURE = "/v1/responses"
"""The name of the endpoint among `GenerationRequest.features`, because not all backends support it."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One chat message; text parts are already joined into `content`."""

    role: str
    content: str
    name: str | None = None


class PromptSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a request's input, over all of its prompts. `text_bytes` are those of the whole body, including
    tools, schemas and other parts that may be rendered into a prompt, but without the separately counted parts: the
    `token_ids` of prompts, and `media` (images, audio, video)."""

    text_bytes: int = 0
    token_ids: int = 0
    media: int = 0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI request, parsed and validated once at the edge.

    `messages` for chat and responses, `prompt` (text or token ids) for completions: the first one if there are
    several, with the others in `further_prompts`. `prompt_size` and `choices` cover all prompts: `choices` counts the
    generated answers, one for each prompt and choice (`n`, or `best_of` if it is larger). `seed` and `max_tokens` are
    None if the client left them out. `features` names the optional parameters in use that a backend must honour
    (`"logprobs"`, `"logit_bias"`, `"tools"`, `"n"`, …), by their OpenAI or vLLM name, and `RESPONSES_FEATURE` for a
    request to that endpoint, which not every backend supports. `mode` and `draft_length` are the client's preference,
    which a policy may permit; `learn` False excludes the outcome from the estimates. `capture`: the client allows or
    denies that the answer is kept for training; None without its header. `restricted` are the parameters for which a
    key needs a permission. `state_ids` are the ids of stored state that it names. `raw` is the unchanged body, for
    upstreams with the same protocol.
    """

    endpoint: Endpoint
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    further_prompts: tuple[str | tuple[int, ...], ...] = ()
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
    capture: bool | None = None
    restricted: tuple[RestrictedUse, ...] = ()
    state_ids: tuple[str, ...] = ()
    raw: bytes = b""

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return 1 + len(self.further_prompts)


class RequestProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The classifier's predictions for a request.

    `evidence` is their explanation in plain words, for the explain endpoint. `confidence` in [0, 1] belongs to `task`;
    below the policy's minimum the class counts as unknown. `long_probability` is that of more than 128 output tokens,
    `rare_probability` that of an answer full of rare tokens, `speculate_probability` that of a long answer without many
    rare tokens, for which speculation pays.
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


ADAPTIVE_STEP_DRAFT_TOKENS = 2


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The arm of a request, with the reason. `draft_length` is 0 exactly when `arm` is not speculative.

    `detail` is the reason in one sentence; `numbers` holds all figures behind it. `saving_s` is the predicted saving of
    the best draft length, negative if speculation is slower; None without a forecast, and before the servers have been
    timed. `unconditional`: the request
    would speculate whatever its neighbours do, so that other decisions may count on it. `adaptive`: the draft length is
    a maximum, and in each step the server verifies as many draft tokens as pay. `protected`: drafts do
    not delay its tokens, on servers that support it. `revision` is the new revision of the
    pair whose servers answer; empty for the serving one. `alarmed`: the control's share is that of an alarm.
    """

    arm: Arm
    reason: Reason
    request_class: str
    draft_length: int
    detail: str
    numbers: Mapping[str, float | int | str | bool]
    saving_s: float | None = None
    unconditional: bool = False
    adaptive: bool = False
    protected: bool = False
    revision: str = ""
    alarmed: bool = False

    @property
    def step_draft_tokens(self) -> int:
        """The draft tokens that each step is counted to verify; of an adaptive request the server verifies few."""
        return min(self.draft_length, ADAPTIVE_STEP_DRAFT_TOKENS) if self.adaptive else self.draft_length


def speculation_of(request: GenerationRequest) -> Capability:
    """The capability that a server needs to speculate on `request`."""
    return Capability.SAMPLED_SPECULATION if request.temperature > 0 else Capability.GREEDY_SPECULATION
