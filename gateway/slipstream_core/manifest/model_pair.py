"""The kind `ModelPair`, the same for a file on a laptop and for a resource in a cluster.

Field names are camelCase on the wire. Every field carries its description and bounds, because the schema of the custom
resources is generated from these types. This module reads no files; `parse` builds these objects from YAML.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slipstream_core.manifest.base import Label, Spec
from slipstream_core.manifest.engines import Engine, ModelName
from slipstream_core.manifest.request_bounds import RequestBounds
from slipstream_core.manifest.serving import Serving

API_VERSION = "slipstream.dev/v1alpha1"
MAX_DRAFT_TOKENS = 32
DRAFTS_WITH_SOURCE = ("model", "hybrid", "eagle", "eagle3")
"""The kinds of drafts that need a checkpoint."""
DRAFTS_OF_VLLM = ("eagle", "eagle3", "mtp", "suffix")
"""The kinds of drafts that only vLLM has."""

ObjectName = Annotated[Label, Meta(description="Lower-case letters, digits and dashes.")]
Source = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4096,
        description="Checkpoint folder in Hugging Face format, relative to the manifest's folder, in a cluster to "
        "serving.storage. In a cluster also hf://ORGANISATION/NAME@REVISION and s3://BUCKET/PREFIX (downloaded before "
        "the server starts), oci://REFERENCE (an image volume) and pvc://CLAIM/FOLDER. On a laptop also "
        "embedded:target and embedded:draft for the embedded pair, embedded:smollm2-eagle for a draft of "
        "SmolLM2-135M-Instruct.",
    ),
]
Revision = Annotated[
    Annotated[str, Meta(min_length=1, max_length=256)] | None,
    Meta(
        description="Version of the checkpoint, in a form of your choice. A change restarts the servers although "
        "source is unchanged."
    ),
]
TokenizerSource = Annotated[
    Annotated[str, Meta(min_length=1, max_length=4096)] | None,
    Meta(description="Folder of the tokenizer's files. Default: the source."),
]
DraftTokens = Annotated[int, Meta(ge=1, le=MAX_DRAFT_TOKENS)]


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of Kubernetes' object metadata that Slipstream uses."""

    name: Annotated[ObjectName, Meta(description="Name of the object, unique among its kind and namespace.")]
    namespace: Annotated[ObjectName | None, Meta(description="Namespace of the object; empty on a laptop.")] = None

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone without a namespace: unique among objects of a kind."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


class Target(Spec, frozen=True, kw_only=True):
    """The model that defines the distribution of the answers."""

    source: Source
    revision: Revision = None
    tokenizer: TokenizerSource = None


class Draft(Spec, frozen=True, kw_only=True):
    """The proposer of draft tokens for the target to verify."""

    kind: Annotated[
        Literal["model", "ngram", "hybrid", "eagle", "eagle3", "mtp", "suffix", "none"],
        Meta(
            description="model: a draft model; ngram: matches within the text; hybrid: matches within the text, and a "
            "draft model where there are none, for engine kind slipstream only; eagle, eagle3: a head on the target's "
            "hidden states; mtp: the target's own layers for multi-token prediction; suffix: matches within earlier "
            "answers; these four for engine kind vllm only; none: never speculate."
        ),
    ]
    source: Annotated[
        Source | None,
        Meta(
            description="Checkpoint of the draft; for the kinds model, hybrid, eagle and eagle3, and for mtp if its "
            "layers are not in the target's checkpoint."
        ),
    ] = None
    revision: Revision = None
    tokenizer: TokenizerSource = None
    alternatives: Annotated[
        tuple[Source, ...],
        Meta(
            max_length=7,
            description="Checkpoints of further drafts of the same kind, with the target's tokenizer: the engine "
            "learns which draft suits which class of requests. For engine kind slipstream, and kinds model and hybrid.",
        ),
    ] = ()
    candidates: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096, pattern="^[^:]+$")] | None,
        Meta(
            description="Folder of trained drafts, relative to the manifest's folder, in a cluster to serving.storage: "
            "each draft that `slipstream drafts train` finishes in it becomes an alternative while the engine runs. "
            "For engine kind slipstream, and kinds model and hybrid."
        ),
    ] = None

    @property
    def has_model(self) -> bool:
        """Whether layers of a model propose tokens."""
        return self.kind in (*DRAFTS_WITH_SOURCE, "mtp")


class ModelPairSpec(Spec, frozen=True, kw_only=True):
    """The model that is served, and its engine."""

    model: Annotated[ModelName, Meta(description="Model name that clients use.")]
    engine: Annotated[Engine, Meta(description="Engine that serves the pair.")]
    target: Annotated[
        Target | None,
        Meta(description="The target model; required for engine kind slipstream, and for kind vllm without endpoints."),
    ] = None
    draft: Annotated[
        Draft | None,
        Meta(description="The draft; required for engine kind slipstream, and for kind vllm without endpoints."),
    ] = None
    max_draft_tokens: Annotated[
        DraftTokens,
        Meta(
            description="Maximum draft length. For engine kind vllm: num_speculative_tokens of its servers; with an "
            "external speculative arm: the draft length that its servers are set to."
        ),
    ] = 8
    price_per_gpu_hour: Annotated[
        Annotated[float, Meta(ge=0, le=100_000)] | None,
        Meta(description="Price of one GPU for an hour, for cost figures; in a currency of your choice."),
    ] = None
    request_bounds: Annotated[
        RequestBounds | None,
        Meta(description="Largest values that gateways accept in requests. Default: those of the servers."),
    ] = None
    serving: Annotated[
        Serving | None,
        Meta(description="Pod settings of the servers in a cluster; for the engine kinds slipstream and vllm."),
    ] = None
    kill_switch: Annotated[
        bool | None, Meta(description="true: every request of this pair decodes plainly, at once.")
    ] = None


class ModelPair(Spec, frozen=True, kw_only=True, tag_field="kind", tag="ModelPair"):
    """A target, its draft, and the engine that serves them."""

    api_version: Literal["slipstream.dev/v1alpha1"]
    metadata: Metadata
    spec: ModelPairSpec

    @property
    def serving(self) -> Serving:
        """The settings of its servers, those at the defaults where it has none."""
        return self.spec.serving or Serving()
