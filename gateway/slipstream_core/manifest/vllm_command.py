"""vLLM's command line for a pair: the part that a laptop and a cluster share, and the arguments that it sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from slipstream_core.manifest.adapters import adapters_of, name_on_servers
from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.rule import defaults_of, reader
from slipstream_core.manifest.sources import located

SCHEDULER = "slipstream_vllm.Scheduler"
_NGRAM_TOKENS = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
_METHODS = {"model": "draft_model"}  # other kinds of drafts have vLLM's own names
_RESERVED = (
    "--model",
    "--served-model-name",
    "--tokenizer",
    "--host",
    "--port",
    "--uds",
    "--scheduler-cls",
    "--speculative-config",
    "--config",
    "--api-key",
    "--headless",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--shutdown-timeout",
    "--distributed-executor-backend",
    "--root-path",
    "--omni",
)
# Beginnings of names: other ways to listen, and to spread over GPUs and nodes that the operator does not count.
_RESERVED_PREFIXES = ("--prefill-context-parallel", "--decode-context-parallel", "--ssl-", "--grpc")
_DATA_PARALLEL = ("--data-parallel", "-dp")
NO_DATA_PARALLELISM = (
    "is not supported: Slipstream reserves no GPUs for such ranks. Use more servers (serving.replicas), or start "
    "servers whose ranks share experts yourself (endpoints)"
)
_FIELDS = {
    "--tensor-parallel-size": "tensorParallelSize",
    "--pipeline-parallel-size": "pipelineParallelSize",
    "--dtype": "dtype",
    "--quantization": "quantization",
    "--max-model-len": "maxModelLen",
    "--max-num-seqs": "maxNumSeqs",
}
_ADAPTER_FIELDS = {"--enable-lora": "adapters", "--lora-modules": "adapters"}
STARTED_FIELDS = (*_FIELDS.values(), "arguments")
"""The fields of the engine that only servers without an address use: they are started with them."""
ADAPTERS_FIELD = "spec.engine.adapters"
"""The field that sets arguments for LoRA, if the pair has it."""
_MAX_LORAS = 4
_SHORT = {"-sc": "--speculative-config"}  # that `slipstream up` has to refuse


def engine_arguments(engine: VllmEngine) -> list[str]:
    """The arguments of the engine's own fields, as far as they are given; `arguments` last."""
    pairs = (
        (argument, str(value))
        for argument, name in _FIELDS.items()
        if (value := reader(name)(engine, None)) != defaults_of(VllmEngine)[name]
    )
    uncached = () if engine.prefix_caching else ("--no-enable-prefix-caching",)
    return [*(part for pair in pairs for part in pair), *uncached, *engine.arguments]


def adapter_arguments(pair: ModelPair, folder: PurePath) -> list[str]:
    """The arguments for the pair's LoRA adapters, whose relative sources start at `folder`. A batch can have several
    adapters; vLLM's default is one."""
    adapters = adapters_of(pair)
    if not adapters:
        return []
    modules = (
        {"name": name_on_servers(pair, adapter), "path": located(adapter.source or "", folder)} for adapter in adapters
    )
    most = min(len(adapters), _MAX_LORAS)
    return ["--lora-modules", *map(json.dumps, modules), "--enable-lora", f"--max-loras={most}"]


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """The speculation settings of a server: up to `tokens` per step. `method` is vLLM's name; `draft` is the checkpoint
    of methods that have one."""

    method: str
    tokens: int
    draft: str | None = None

    def arguments(self) -> list[str]:
        """The arguments of vLLM's command line."""
        fields: dict[str, object] = {"method": self.method, "num_speculative_tokens": self.tokens}
        if self.draft is not None:
            fields["model"] = self.draft
        if self.method == "ngram":
            fields |= _NGRAM_TOKENS
        return ["--speculative-config", json.dumps(fields)]


def speculation_of(pair: ModelPair, folder: PurePath) -> Speculation | None:
    """The speculation of a pair whose relative sources start at `folder`; None without a draft."""
    draft = pair.spec.draft
    if draft is None or draft.kind == "none":
        return None
    return Speculation(
        method=_METHODS.get(draft.kind, draft.kind),
        tokens=pair.spec.max_draft_tokens,
        draft=None if draft.source is None else located(draft.source, folder),
    )


def set_by_slipstream(argument: str) -> bool:
    """Whether `argument` is one that Slipstream sets. A value is not an argument: False."""
    return _sets(argument, _RESERVED) or argument.replace("_", "-").startswith(_RESERVED_PREFIXES)


def is_data_parallel(argument: str) -> bool:
    """Whether `argument` is one of vLLM's for data parallelism."""
    return argument.replace("_", "-").startswith(_DATA_PARALLEL)


def is_short(argument: str) -> bool:
    """Whether `argument` is a short form, such as `-tp`: vLLM has many, also with the value attached. A number is a
    value."""
    return argument.startswith("-") and not argument.startswith("--") and not argument[1:2].isdigit()


def set_by_field(argument: str) -> str | None:
    """The path of the manifest's field that sets `argument`; None if none does."""
    fields = _FIELDS | _ADAPTER_FIELDS
    return next((f"spec.engine.{field}" for own, field in fields.items() if _sets(argument, (own,))), None)


def _sets(argument: str, own: Sequence[str]) -> bool:
    """Whether `argument` is one of `own` to vLLM, which accepts unambiguous prefixes of a name, underscores for dashes,
    and `--name.key` for a field of JSON."""
    if not argument.startswith("-"):
        return False
    name = argument.partition("=")[0].partition(".")[0].replace("_", "-")
    name = _SHORT.get(name, name)
    return len(name) > len("--") and any(known.startswith(name) for known in own)
