"""Types of the engines that can serve a pair: Slipstream's own, vLLM with Slipstream's plugin, or external engines.

As in `objects`: field names are camelCase on the wire, and the schema of the custom resources is generated from these
types.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from slipstream_core.manifest.base import Spec

_TRITON_MODEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"  # Triton derives the name from a folder's name

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
EndpointUrl = Annotated[str, Meta(min_length=1, max_length=2048)]
TritonModel = Annotated[
    Annotated[str, Meta(pattern=_TRITON_MODEL_PATTERN, max_length=128)] | None,
    Meta(description="Name of the model in Triton; without it, the pair's name."),
]
ApiKeyEnv = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)] | None
Unsupported = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...],
    Meta(
        max_length=64,
        description="Request parameters that these servers cannot honour, in addition to those that Slipstream "
        "already knows of.",
    ),
]

ParallelSize = Annotated[int, Meta(ge=1, le=1024)]


class WireProtocol(StrEnum):
    """The wire protocol between the gateway and an arm's servers."""

    OPENAI = "openai"
    TRITON = "triton"


class DialectName(StrEnum):
    """The engine behind an OpenAI-compatible server, for what its API does differently (see `dialects`)."""

    OPENAI = "openai"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"


class SlipstreamEngine(Spec, frozen=True, kw_only=True, tag_field="kind", tag="slipstream"):
    """Slipstream's own engine in Triton Inference Server: target and draft in one process, one batch."""

    kind: ClassVar[str] = "slipstream"

    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Device that the models run on.")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Number format of the weights; auto: the best one of the device."),
    ] = "auto"
    max_concurrency: Annotated[int, Meta(ge=1, le=1024, description="Maximum number of requests in a batch.")] = 8
    context_tokens: Annotated[
        Annotated[int, Meta(ge=16, le=16_777_216)] | None,
        Meta(description="Maximum length of prompt plus answer in tokens. Default: the target's limit."),
    ] = None
    endpoints: Annotated[
        tuple[EndpointUrl, ...],
        Meta(
            max_length=256,
            description="Triton's gRPC addresses, grpc(s)://host:port; empty: servers are started locally.",
        ),
    ] = ()
    triton_model: TritonModel = None


class PlainServers(Spec, frozen=True, kw_only=True):
    """Servers of the same target without speculation, for requests that vLLM refuses while it speculates."""

    endpoints: Annotated[
        tuple[EndpointUrl, ...],
        Meta(min_length=1, max_length=256, description="OpenAI-compatible servers, http(s)://host:port[/path]."),
    ]
    model: Annotated[ModelName | None, Meta(description="Model name on these servers. Default: spec.model.")] = None
    api_key_env: Annotated[
        ApiKeyEnv, Meta(description="Environment variable that holds the API key of these servers.")
    ] = None


class Adapter(Spec, frozen=True, kw_only=True):
    """A LoRA adapter of the target. Clients name it MODEL:NAME, with the pair's model."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            max_length=128,
            description="Name of the adapter; clients request the model MODEL:NAME.",
        ),
    ]
    source: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(description="Folder of the adapter, as target.source; required for servers that are started."),
    ] = None
    model: Annotated[
        ModelName | None,
        Meta(description="Name of the adapter on the servers in endpoints. Default: its name."),
    ] = None


class VllmEngine(Spec, frozen=True, kw_only=True, tag_field="kind", tag="vllm"):
    """Stock vLLM with Slipstream's plugin. One pool serves both arms; every request carries its draft length.

    Without `endpoints` the servers are started: on a laptop by `slipstream up`, in a cluster by the operator, which
    runs vLLM's own HTTP server only. The fields from `tensor_parallel_size` to `arguments` are for started servers.
    """

    kind: ClassVar[str] = "vllm"

    serving: Annotated[
        Literal["openai", "triton"],
        Meta(description="openai: vLLM's own HTTP server; triton: vLLM within Triton Inference Server."),
    ] = "openai"
    endpoints: Annotated[
        tuple[EndpointUrl, ...],
        Meta(
            max_length=256,
            description="http(s)://host:port[/path] for serving openai, grpc(s)://host:port for serving triton; "
            "empty: servers are started locally.",
        ),
    ] = ()
    model: Annotated[
        ModelName | None,
        Meta(description="Model name on the servers, for serving openai. Default: spec.model."),
    ] = None
    api_key_env: Annotated[
        ApiKeyEnv,
        Meta(
            description="Environment variable that holds the servers' API key, for serving openai only. It stops "
            "running drafts if the servers have it as SLIPSTREAM_VLLM_TOKEN, too."
        ),
    ] = None
    triton_model: TritonModel = None
    tensor_parallel_size: Annotated[
        ParallelSize, Meta(description="Number of GPUs that share each layer (vLLM's --tensor-parallel-size).")
    ] = 1
    pipeline_parallel_size: Annotated[
        ParallelSize, Meta(description="Number of stages of layers (vLLM's --pipeline-parallel-size).")
    ] = 1
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        Meta(description="Number format of the weights (vLLM's --dtype). Default: auto; float32 on a laptop."),
    ] = None
    quantization: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)] | None,
        Meta(description="Quantization of the weights (vLLM's --quantization). Default: that of the checkpoint."),
    ] = None
    max_model_len: Annotated[
        Annotated[int, Meta(ge=16, le=16_777_216)] | None,
        Meta(description="Maximum length of prompt plus answer in tokens. Default: the target's limit."),
    ] = None
    max_num_seqs: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description="Maximum number of requests in a batch. Default: vLLM's; 16 on a laptop."),
    ] = None
    arguments: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
        Meta(
            max_length=128,
            description="Further arguments of vLLM's command line, such as --enable-prefix-caching or "
            "--gpu-memory-utilization=0.92; none that other fields or Slipstream set.",
        ),
    ] = ()
    plain: Annotated[
        PlainServers | None,
        Meta(
            description="Servers of the same target without speculation. They get the requests that vLLM refuses "
            "while it speculates (min_p, logit_bias and others). Without such servers these requests are refused."
        ),
    ] = None
    prefix_caching: Annotated[
        bool,
        Meta(
            description="Whether the servers cache the beginnings of prompts, as vLLM does by default. Then requests "
            "with the same beginning go to the same server if its load permits. Servers that are started get the "
            "setting."
        ),
    ] = True
    adapters: Annotated[
        tuple[Adapter, ...],
        Meta(
            max_length=64,
            description="LoRA adapters of the target, for serving openai. A request for one goes to a server that has "
            "loaded it. Drafts are those of the target without the adapter.",
        ),
    ] = ()
    unsupported: Unsupported = ()


class ExternalArm(Spec, frozen=True, kw_only=True):
    """Servers that are run outside Slipstream, all with the same model and the same settings."""

    protocol: Annotated[
        WireProtocol, Meta(description="openai: any OpenAI-compatible server; triton: Slipstream's Triton model.")
    ]
    endpoints: Annotated[
        tuple[EndpointUrl, ...],
        Meta(min_length=1, max_length=256, description="http(s)://host:port[/path] or grpc(s)://host:port."),
    ]
    model: Annotated[ModelName, Meta(description="Model name on the servers.")]
    dialect: Annotated[
        DialectName,
        Meta(
            description="Dialect of OpenAI's API, for protocol openai only. sglang and trtllm (TensorRT-LLM's "
            "trtllm-serve): Slipstream reads the draft counts of these servers, and knows the parameters that they "
            "ignore or refuse."
        ),
    ] = DialectName.OPENAI
    unsupported: Unsupported = ()
    api_key_env: Annotated[
        ApiKeyEnv,
        Meta(description="Environment variable that holds the servers' API key; for protocol openai only."),
    ] = None
    prefix_caching: Annotated[
        bool | None,
        Meta(
            description="Whether the servers cache the beginnings of prompts. Then requests with the same beginning go "
            "to the same server if its load permits. Default: true for the dialects sglang and trtllm."
        ),
    ] = None
    price_per_gpu_hour: Annotated[
        Annotated[float, Meta(ge=0, le=100_000)] | None,
        Meta(description="Price of one of these servers for an hour. Default: the pair's price."),
    ] = None


class Arms(Spec, frozen=True, kw_only=True):
    """The servers of a pair that an external engine serves."""

    plain: Annotated[ExternalArm, Meta(description="Servers that decode plainly.")]
    speculative: Annotated[
        ExternalArm | None, Meta(description="Servers that speculate. Without them every request decodes plainly.")
    ] = None


class ExternalEngine(Spec, frozen=True, kw_only=True, tag_field="kind", tag="external"):
    """Engines that are run outside Slipstream, one pool per arm."""

    kind: ClassVar[str] = "external"

    arms: Arms


Engine = SlipstreamEngine | VllmEngine | ExternalEngine
