"""The kind `SpeculationPolicy`: when the requests of a pair speculate. See `model_pair`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slipstream_core.manifest.base import Share, Spec
from slipstream_core.manifest.capture import Capture
from slipstream_core.manifest.model_pair import DraftTokens, Metadata, ModelPair, ObjectName
from slipstream_core.manifest.naming import CLASS_PATTERN
from slipstream_core.manifest.rollout import Analysis, Rollback, Rollout, Thresholds


class ClassRule(Spec, frozen=True, kw_only=True):
    """The treatment of one request class. A rule for `task/length` takes precedence over one for `task`."""

    name: Annotated[
        str,
        Meta(pattern=CLASS_PATTERN, max_length=64, description="A task, or task/length: summarization/long."),
    ]
    mode: Annotated[
        Literal["auto", "speculative", "plain"],
        Meta(description="auto: the thresholds decide; speculative: they are skipped; plain: never speculate."),
    ] = "auto"
    draft_tokens: Annotated[
        DraftTokens | None, Meta(description="Maximum draft length of this class. Default: the policy's.")
    ] = None
    thresholds: Annotated[
        Thresholds | None, Meta(description="Thresholds of the class. A field that is left out has the policy's value.")
    ] = None


class SuccessThresholds(Spec, frozen=True, kw_only=True):
    """The benefit that speculation must bring in a class to count as a success, set before any measurement."""

    p95_reduction: Annotated[
        float, Meta(ge=0, lt=1, description="Minimum reduction of the p95 end-to-end latency, as a share.")
    ] = 0.2
    quality_loss: Annotated[
        Share, Meta(description="Maximum reduction of the share of answers that pass their check.")
    ] = 0.0
    cost_increase: Annotated[
        float, Meta(ge=0, le=10, description="Maximum increase of the cost per response, as a share.")
    ] = 0.05


class SpeculationPolicySpec(Spec, frozen=True, kw_only=True):
    """Conditions under which a pair's requests speculate."""

    pair: Annotated[ObjectName, Meta(description="Name of the ModelPair that this policy applies to.")]
    enabled: Annotated[bool, Meta(description="false: every request decodes plainly.")] = True
    allow_client_mode: Annotated[
        bool, Meta(description="true: clients may choose with the header x-slipstream-mode.")
    ] = False
    kill_switch: Annotated[bool | None, Meta(description="true: every request decodes plainly, at once.")] = None
    adaptive_draft_length: Annotated[
        bool,
        Meta(
            description="true: the draft length is a maximum, and servers that support it verify in each step as many "
            "draft tokens as pay (for sampled requests, if their tokens do not depend on it); false: each step has the "
            "draft length of the decision."
        ),
    ] = True
    protect: Annotated[
        Literal["latency", "throughput"],
        Meta(
            description="What servers that choose the draft tokens of a step (adaptiveDraftLength) may do to requests "
            "that share it. latency: no class is expected to take more than 2 % longer per token than without "
            "drafts; throughput: the tokens per second of all requests grow, and classes without drafts may pay for "
            "it. The control is never protected."
        ),
    ] = "latency"
    decision: Annotated[
        Literal["expected", "cautious", "rules"],
        Meta(
            description="expected: speculate if the predicted saving pays; cautious: if the lower confidence bound of "
            "the saving pays, and as with expected in a class without measurements; rules: by the thresholds alone, "
            "without measurements."
        ),
    ] = "expected"
    margin: Annotated[Share, Meta(description="Minimum predicted saving, as a share of the plain answer's time.")] = (
        0.02
    )
    confidence: Annotated[
        float,
        Meta(
            gt=0.5,
            lt=1,
            description="One-sided confidence level of bounds, and for treating the sign of a saving as certain.",
        ),
    ] = 0.9
    max_cost_increase: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="Maximum predicted increase of an answer's cost by speculation, as a share; null: no limit."),
    ] = 0.05
    hold_back_share: Annotated[
        Share,
        Meta(
            description="Share of the requests that would speculate but decode plainly as the control, to keep the "
            "comparison honest."
        ),
    ] = 0.02
    max_hold_back_share: Annotated[
        Share | None,
        Meta(
            description="Upper limit of the control's share. In a cluster the operator raises holdBackShare in a class "
            "whose comparison is inconclusive, and gateways raise it during an alarm. A holdBackShare of 0 is never "
            "raised. null: 0.1 for the operator, or holdBackShare if that is more, and 0.75 for gateways."
        ),
    ] = None
    exploration_share: Annotated[
        Share, Meta(description="Share of the requests with an uncertain saving that speculate for exploration.")
    ] = 0.05
    parity_share: Annotated[
        Share,
        Meta(
            description="Share of speculative answers that are replayed plainly and compared. They must be equal; "
            "sampled ones must be equally likely if the servers do not promise equal answers for equal seeds."
        ),
    ] = 0.01
    parity_texts: Annotated[
        bool, Meta(description="true: the text of answers with a parity mismatch may be logged.")
    ] = False
    resume: Annotated[
        Literal["never", "exact", "text"],
        Meta(
            description="Recovery of a stream whose server fails. exact: it continues on another server if that "
            "server produces the same tokens; text: also where only the text is known, on OpenAI-compatible servers "
            "that support continue_final_message; never: it ends with an error."
        ),
    ] = "exact"
    capture: Annotated[
        Capture | None,
        Meta(description="Answers and prompts that gateways keep for training drafts. Default: none."),
    ] = None
    success: Annotated[
        SuccessThresholds, Meta(description="Success criteria of `slipstream bench` for the measured difference.")
    ] = SuccessThresholds()
    min_output_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="Minimum expected answer length in tokens; shorter answers decode plainly. Default: the "
            "break-even decides."
        ),
    ] = None
    max_rare_token_share: Annotated[
        Share | None,
        Meta(
            description="Maximum expected share of rare tokens (ids, amounts, names, dates); above it, answers decode "
            "plainly. Default: the break-even decides."
        ),
    ] = None
    max_temperature: Annotated[
        float, Meta(ge=0, le=2, description="Maximum sampling temperature; above it, requests decode plainly.")
    ] = 1.0
    max_context_tokens: Annotated[
        int, Meta(ge=1, le=16_777_216, description="Maximum prompt length in tokens; longer prompts decode plainly.")
    ] = 16_384
    min_confidence: Annotated[
        Share | None,
        Meta(
            description="Minimum confidence of the classifier; below it, the task counts as unknown and the request "
            "decodes plainly. Default: the break-even decides.",
        ),
    ] = None
    draft_tokens: Annotated[
        DraftTokens | None, Meta(description="Maximum draft length. Default: the pair's maxDraftTokens.")
    ] = None
    classes: Annotated[
        tuple[ClassRule, ...], Meta(max_length=64, description="Rules for individual request classes.")
    ] = ()
    thresholds: Annotated[
        Thresholds, Meta(description="Thresholds of every class in a cluster. A class that breaks one is rolled back.")
    ] = Thresholds()
    analysis: Annotated[Analysis, Meta(description="Statistical requirements of the operator's verdicts.")] = Analysis()
    rollout: Annotated[Rollout, Meta(description="Steps in which a class is promoted in a cluster.")] = Rollout()
    rollback: Annotated[
        Rollback, Meta(description="Retries and fail mode of a class that is rolled back in a cluster.")
    ] = Rollback()
    retry_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Any new value lets classes that are rolled back start again."),
    ] = None


def rule_of(spec: SpeculationPolicySpec, request_class: str) -> ClassRule | None:
    """The rule for a class, `task/length`: one for that takes precedence over one for its task."""
    rules = {rule.name: rule for rule in spec.classes}
    return rules.get(request_class) or rules.get(request_class.partition("/")[0])


class SpeculationPolicy(Spec, frozen=True, kw_only=True, tag_field="kind", tag="SpeculationPolicy"):
    """When the requests of one pair speculate."""

    api_version: Literal["slipstream.dev/v1alpha1"]
    metadata: Metadata
    spec: SpeculationPolicySpec


ManifestObject = ModelPair | SpeculationPolicy
