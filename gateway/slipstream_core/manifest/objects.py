"""The two kinds of a manifest as types: what a file on a laptop and a resource in a cluster have in common.

Field names are camelCase on the wire. Every field carries its description and bounds, because the schema of the
custom resources is made from these types. Nothing here reads files; `parse` makes these objects from YAML.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slipstream_core.manifest.engines import Engine, ModelName
from slipstream_core.manifest.rollout import Analysis, Rollback, Rollout, Thresholds
from slipstream_core.manifest.serving import Serving

API_VERSION = "slipstream.dev/v1alpha1"
MAX_DRAFT_TOKENS = 32
EMBEDDED_SOURCES = ("embedded:target", "embedded:draft")

_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_CLASS_PATTERN = (
    r"^(summarization|extraction|code|translation|classification|short_qa|math_reasoning|creative_writing"
    r"|open_chat|rewriting)(/(short|medium|long))?$"
)

ObjectName = Annotated[
    str,
    Meta(pattern=_NAME_PATTERN, max_length=63, description="Lower-case letters, digits and dashes."),
]
Source = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4096,
        description="A checkpoint folder in Hugging Face form, relative to the manifest's folder, or "
        "embedded:target / embedded:draft.",
    ),
]
Revision = Annotated[
    Annotated[str, Meta(min_length=1, max_length=256)] | None,
    Meta(description="Version of the checkpoint, of your choice: a change rolls the servers where the source stays."),
]
TokenizerSource = Annotated[
    Annotated[str, Meta(min_length=1, max_length=4096)] | None,
    Meta(description="Folder of the tokenizer's files; without it, the source."),
]
DraftTokens = Annotated[int, Meta(ge=1, le=MAX_DRAFT_TOKENS)]


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What Kubernetes calls an object's metadata, as far as it counts here; the rest belongs to Kubernetes."""

    name: Annotated[ObjectName, Meta(description="Name of the object, unique among its kind and namespace.")]
    namespace: Annotated[ObjectName | None, Meta(description="Namespace of the object; on a laptop, none.")] = None

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone where there is no namespace: what tells objects of a kind apart."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The model whose distribution the answers have."""

    source: Source
    revision: Revision = None
    tokenizer: TokenizerSource = None


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What guesses the target's next tokens."""

    kind: Annotated[
        Literal["model", "ngram", "none"],
        Meta(description="model: a draft model; ngram: look-up in the prompt; none: never speculate."),
    ]
    source: Annotated[Source | None, Meta(description="The draft model's checkpoint; for kind model only.")] = None
    revision: Revision = None
    tokenizer: TokenizerSource = None


class ModelPairSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What is served, and by what."""

    model: Annotated[ModelName, Meta(description="The model's name for clients.")]
    engine: Annotated[Engine, Meta(description="What serves the pair.")]
    target: Annotated[
        Target | None,
        Meta(description="The target; required for engine kind slipstream, and for kind vllm without endpoints."),
    ] = None
    draft: Annotated[
        Draft | None,
        Meta(description="The draft; required for engine kind slipstream, and for kind vllm without endpoints."),
    ] = None
    max_draft_tokens: Annotated[
        DraftTokens,
        Meta(
            description="Longest draft: for engine kind vllm, num_speculative_tokens of its servers; with an external "
            "speculative arm, what its servers are set to."
        ),
    ] = 8
    price_per_gpu_hour: Annotated[
        Annotated[float, Meta(ge=0, le=100_000)] | None,
        Meta(description="Price of one GPU for an hour, for the cost figures; in a currency of your choice."),
    ] = None
    serving: Annotated[
        Serving | None, Meta(description="How the servers run in a cluster; for engine kind slipstream only.")
    ] = None
    kill_switch: Annotated[
        bool | None, Meta(description="true: every request of this pair decodes plainly, at once.")
    ] = None


class ModelPair(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="camel",
    tag_field="kind",
    tag="ModelPair",
):
    """A target, its draft, and the engine that serves them."""

    api_version: Literal["slipstream.dev/v1alpha1"]
    metadata: Metadata
    spec: ModelPairSpec


class ClassRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What to do with one request class; `task/length` goes before `task`."""

    name: Annotated[
        str,
        Meta(pattern=_CLASS_PATTERN, max_length=64, description="A task, or task/length: summarization/long."),
    ]
    mode: Annotated[
        Literal["auto", "speculative", "plain"],
        Meta(description="auto: the thresholds decide; speculative: they are skipped; plain: never speculate."),
    ] = "auto"
    draft_tokens: Annotated[
        DraftTokens | None, Meta(description="Longest draft of this class; without it, the policy's.")
    ] = None
    thresholds: Annotated[
        Thresholds | None, Meta(description="What the class is held to; what is left out is the policy's.")
    ] = None


Share = Annotated[float, Meta(ge=0, le=1)]


class SuccessThresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What speculation must bring in a class to count as a success; set before anything is measured."""

    p95_reduction: Annotated[
        float, Meta(ge=0, lt=1, description="The p95 of the end-to-end latency must fall by at least this share.")
    ] = 0.2
    quality_loss: Annotated[
        Share, Meta(description="The share of answers that pass their check may fall by at most this much.")
    ] = 0.0
    cost_increase: Annotated[
        float, Meta(ge=0, le=10, description="The cost per response may rise by at most this share.")
    ] = 0.05


class SpeculationPolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """When a pair's requests speculate."""

    pair: Annotated[ObjectName, Meta(description="Name of the ModelPair that this policy is for.")]
    enabled: Annotated[bool, Meta(description="false: every request decodes plainly.")] = True
    allow_client_mode: Annotated[bool, Meta(description="Whether clients may choose by x-slipstream-mode.")] = False
    kill_switch: Annotated[bool | None, Meta(description="true: every request decodes plainly, at once.")] = None
    decision: Annotated[
        Literal["expected", "cautious", "rules"],
        Meta(
            description="expected: speculate where the predicted saving pays; cautious: where its lower confidence "
            "bound does, as with expected in a class that was not measured yet; rules: by the thresholds alone, "
            "without measurements."
        ),
    ] = "expected"
    margin: Annotated[
        Share, Meta(description="A predicted saving must be more than this share of the plain answer's time.")
    ] = 0.02
    confidence: Annotated[
        float,
        Meta(gt=0.5, lt=1, description="One-sided confidence of a bound, and of calling a saving's sign certain."),
    ] = 0.9
    max_cost_increase: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="A speculative answer may be predicted to cost at most this share more; null: any."),
    ] = 0.05
    hold_back_share: Annotated[
        Share, Meta(description="Share of what would speculate that decodes plainly, to keep the comparison honest.")
    ] = 0.02
    max_hold_back_share: Annotated[
        Share | None,
        Meta(
            description="In a cluster the operator raises holdBackShare up to this share in a class whose comparison "
            "with the control is not clear, and lowers it again. It raises no holdBackShare of 0. null: 0.1, or "
            "holdBackShare where that is more."
        ),
    ] = None
    exploration_share: Annotated[
        Share, Meta(description="Share of the requests with an uncertain saving that speculate all the same, to learn.")
    ] = 0.05
    parity_share: Annotated[
        Share,
        Meta(
            description="Share of speculative answers that are compared with plain ones: greedy ones must be equal, "
            "sampled ones as likely."
        ),
    ] = 0.01
    parity_texts: Annotated[
        bool, Meta(description="Whether a parity mismatch may be logged with the answers' text.")
    ] = False
    resume: Annotated[
        Literal["never", "exact", "text"],
        Meta(
            description="What becomes of a stream that its server breaks off. exact: it goes on at another server, "
            "where that gives the same tokens; text: also where only the text is known, at OpenAI-compatible servers "
            "that take continue_final_message; never: it ends with an error."
        ),
    ] = "exact"
    success: Annotated[
        SuccessThresholds, Meta(description="What `slipstream bench` holds the measured difference against.")
    ] = SuccessThresholds()
    min_output_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="Answers expected to be shorter decode plainly; without it, the break-even decides."),
    ] = None
    max_rare_token_share: Annotated[
        Share | None,
        Meta(description="Above this share of ids, amounts, names and dates: plain; without it, the break-even."),
    ] = None
    max_temperature: Annotated[float, Meta(ge=0, le=2, description="Hotter sampling decodes plainly.")] = 1.0
    max_context_tokens: Annotated[int, Meta(ge=1, le=16_777_216, description="Longer prompts decode plainly.")] = 16_384
    min_confidence: Annotated[
        float, Meta(ge=0, le=1, description="Below this, the classifier's task counts as unknown: plain.")
    ] = 0.4
    draft_tokens: Annotated[
        DraftTokens | None, Meta(description="Longest draft; without it, the pair's maxDraftTokens.")
    ] = None
    classes: Annotated[tuple[ClassRule, ...], Meta(max_length=64, description="Rules for single request classes.")] = ()
    thresholds: Annotated[
        Thresholds, Meta(description="What every class is held to in a cluster, else it is rolled back.")
    ] = Thresholds()
    analysis: Annotated[Analysis, Meta(description="How sure the operator must be.")] = Analysis()
    rollout: Annotated[Rollout, Meta(description="The steps in which a class is promoted in a cluster.")] = Rollout()
    rollback: Annotated[Rollback, Meta(description="How a class is taken back in a cluster.")] = Rollback()
    retry_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Any new value lets rolled back classes start again."),
    ] = None


class SpeculationPolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="camel",
    tag_field="kind",
    tag="SpeculationPolicy",
):
    """When the requests of one pair speculate."""

    api_version: Literal["slipstream.dev/v1alpha1"]
    metadata: Metadata
    spec: SpeculationPolicySpec


ManifestObject = ModelPair | SpeculationPolicy
