"""Rules of custom resources that a schema cannot express, in Common Expression Language, by the type that they apply
to.

They repeat the rules of `pair_rules` and `rules` as far as the language can express them, so that the API server
refuses at once what gateways would refuse. Only functions that every CEL implementation has are used. A field that is
null counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slipstream_core.manifest.autoscaling import Autoscaling
from slipstream_core.manifest.cel_rule import Rule, default_of, or_default
from slipstream_core.manifest.engines import (
    Adapter,
    ExternalArm,
    ExternalEngine,
    PlainServers,
    SlipstreamEngine,
    VllmEngine,
)
from slipstream_core.manifest.inference_pool import InferencePool
from slipstream_core.manifest.objects import (
    DRAFTS_OF_VLLM,
    DRAFTS_WITH_SOURCE,
    Draft,
    ModelPairSpec,
    Target,
)
from slipstream_core.manifest.pair_rules import (
    LWS_PREFIX,
    RESERVED_LABELS,
    RESERVED_PREFIX,
    RESERVED_VARIABLES,
    STARTED_VLLM_FIELDS,
    camel,
)
from slipstream_core.manifest.policy_validations import POLICY_RULES
from slipstream_core.manifest.serving import EnvVar, Serving, Toleration, Update
from slipstream_core.manifest.sources import EMBEDDED_SOURCES, FORMS

_GRPC = r"^grpcs?://[^/@?#\\s]+:[0-9]+$"
_HTTP = r"^https?://[^/@?#\\s]+(/[^?#\\s]*)?$"


def _absent(field: str, unless: str, message: str) -> Rule:
    return Rule(f"{unless} || !has(self.{field})", f"{field} has no effect {message}, leave it out")


def _is_default(engine: type[msgspec.Struct], field: str) -> str:
    """`|| ` and whether the engine's `field` has its default; empty where that is none."""
    default, path = default_of(engine, field), f"self.engine.{field}"
    if default is None:
        return ""
    return f" || has({path}) && {path} == {list(default) if isinstance(default, tuple) else repr(default)}"


def _source(field: str) -> tuple[Rule, ...]:
    return (
        Rule(
            f"!has(self.{field}) || !self.{field}.startsWith('embedded:') || self.{field} in {list(EMBEDDED_SOURCES)}",
            f"{field} must be a folder or one of {', '.join(EMBEDDED_SOURCES)}",
        ),
        *_remote_source(field),
    )


def _remote_source(field: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"!has(self.{field}) || !self.{field}.startsWith('{scheme}') || self.{field}.matches('{pattern}')",
            f"{field} must be {form}",
        )
        for scheme, (pattern, form) in FORMS.items()
    )


_SOURCES = (*_source("source"), *_source("tokenizer"))
_ADAPTER = (
    Rule(
        "!has(self.source) || !self.source.startsWith('embedded:')",
        "source must be the folder of an adapter",
    ),
    *_remote_source("source"),
)

_ENGINES = (SlipstreamEngine, VllmEngine, ExternalEngine)


def _kinds_with(field: str) -> tuple[str, ...]:
    """The engine kinds that have `field`."""
    return tuple(
        str(engine.__struct_config__.tag)
        for engine in _ENGINES
        if any(known.encode_name == field for known in msgspec.structs.fields(engine))
    )


def _only_for(field: str, *kinds: str) -> Rule:
    return _absent(field, f"self.engine.kind in {list(kinds)}", f"with an engine kind other than {' and '.join(kinds)}")


_ENGINE_FIELDS = tuple(
    dict.fromkeys(field.encode_name for engine in _ENGINES for field in msgspec.structs.fields(engine))
)
_NO_ENDPOINTS = "(!has(self.engine.endpoints) || size(self.engine.endpoints) == 0)"
_STARTED = f"self.engine.kind == 'slipstream' || self.engine.kind == 'vllm' && {_NO_ENDPOINTS}"
_BY_TRITON = f"(self.engine.kind == 'slipstream' || {or_default('self.engine.serving', repr('openai'))} == 'triton')"
_BY_VLLM = f"{or_default('self.engine.serving', repr('openai'))} == 'openai'"
_MANAGED_VLLM = f"({_NO_ENDPOINTS} && {_BY_VLLM})"
_GPUS = or_default("self.serving.gpus", "1")
_NODES = or_default("self.serving.nodes", "1")
_USED = f"{or_default('self.engine.tensorParallelSize', '1')} * {or_default('self.engine.pipelineParallelSize', '1')}"
_FOR_WHICH = "is required for engine kind slipstream, and for kind vllm without engine.endpoints"

_PAIR = (
    Rule(f"!({_STARTED}) || has(self.target)", f"target {_FOR_WHICH}"),
    Rule(f"!({_STARTED}) || has(self.draft)", f"draft {_FOR_WHICH}; kind none for a target alone"),
    Rule("self.engine.kind != 'external' || has(self.engine.arms)", "engine.arms is required for engine kind external"),
    _only_for("target", "slipstream", "vllm"),
    _only_for("draft", "slipstream", "vllm"),
    _only_for("serving", "slipstream", "vllm"),
    *(_only_for(f"engine.{field}", *_kinds_with(field)) for field in _ENGINE_FIELDS),
    Rule(
        f"!has(self.serving) || {_NO_ENDPOINTS}",
        "serving has no effect with engine.endpoints, leave one of them out",
    ),
    Rule(
        f"!has(self.engine.endpoints) || self.engine.endpoints.all(address,"
        f" {_BY_TRITON} ? address.matches('{_GRPC}') : address.matches('{_HTTP}'))",
        "engine.endpoints must be grpc://host:port or grpcs://host:port, for engine kind vllm with serving openai"
        " http(s)://host:port with or without a path; and without credentials, query and fragment",
    ),
    _absent("engine.tritonModel", _BY_TRITON, "with serving openai"),
    *(_absent(f"engine.{name}", _BY_VLLM, "with serving triton") for name in ("model", "apiKeyEnv")),
    Rule(
        "!has(self.draft) || self.draft.kind != 'hybrid' || self.engine.kind == 'slipstream'",
        "draft.kind hybrid is for engine kind slipstream: vLLM has one draft",
    ),
    Rule(
        "!has(self.draft) || !has(self.draft.alternatives) || size(self.draft.alternatives) == 0 || "
        "self.engine.kind == 'slipstream' && self.draft.kind in ['model', 'hybrid']",
        "draft.alternatives are for engine kind slipstream, and draft kinds model and hybrid",
    ),
    Rule(
        "!has(self.draft) || !has(self.draft.candidates) || "
        "self.engine.kind == 'slipstream' && self.draft.kind in ['model', 'hybrid']",
        "draft.candidates is for engine kind slipstream, and draft kinds model and hybrid",
    ),
    Rule(
        "!has(self.draft) || !has(self.draft.alternatives) || !has(self.draft.source) || "
        "self.draft.alternatives.all(source, source != self.draft.source && "
        "self.draft.alternatives.exists_one(other, other == source))",
        "draft.alternatives must be checkpoints that differ from each other and from draft.source",
    ),
    Rule(
        f"!has(self.draft) || !(self.draft.kind in {list(DRAFTS_OF_VLLM)}) || self.engine.kind == 'vllm'",
        f"draft.kind {', '.join(DRAFTS_OF_VLLM)} are for engine kind vllm",
    ),
    Rule(
        f"!has(self.draft) || !has(self.draft.tokenizer) || self.engine.kind != 'vllm' || !{_NO_ENDPOINTS}",
        "draft.tokenizer has no effect with engine kind vllm, which uses the tokenizer in draft.source; leave it out",
    ),
    *(
        _absent(
            f"engine.{field}",
            f"self.engine.kind != 'vllm' || {_MANAGED_VLLM}{_is_default(VllmEngine, field)}",
            "with endpoints or serving triton",
        )
        for field in map(camel, STARTED_VLLM_FIELDS)
    ),
    _absent("serving", f"self.engine.kind != 'vllm' || {_BY_VLLM}", "with serving triton"),
    Rule(
        f"self.engine.kind != 'slipstream' || !has(self.serving) || {_GPUS} <= 1 && {_NODES} <= 1",
        "serving.gpus and serving.nodes must be at most 1: Slipstream's engine uses one GPU",
    ),
    Rule(
        f"self.engine.kind != 'vllm' || !has(self.serving) || {_GPUS} == 0 || {_GPUS} * {_NODES} == {_USED}",
        "serving.gpus times serving.nodes must be as many GPUs as vLLM uses: engine.tensorParallelSize times"
        " engine.pipelineParallelSize",
    ),
    Rule(
        f"self.engine.kind != 'vllm' || !has(self.serving) || {_GPUS} != 0 || {_USED} % {_NODES} == 0",
        "serving.nodes must divide the processes of vLLM: engine.tensorParallelSize times engine.pipelineParallelSize",
    ),
    Rule(
        "self.engine.kind != 'slipstream' || !has(self.serving) || !has(self.serving.autoscaling) || "
        "!has(self.serving.autoscaling.kvCacheUsage)",
        "serving.autoscaling.kvCacheUsage is for engine kind vllm: Slipstream's engine has no paged cache",
    ),
    Rule(
        "self.engine.kind != 'slipstream' || !has(self.serving) || !has(self.serving.inferencePool)",
        "serving.inferencePool is for engine kind vllm: endpoint pickers do not speak Triton's protocol",
    ),
    Rule(
        f"!has(self.engine.adapters) || size(self.engine.adapters) == 0 || {_BY_VLLM}",
        "engine.adapters has no effect with serving triton, leave it out",
    ),
    Rule(
        f"!has(self.engine.adapters) || self.engine.adapters.all(adapter, {_NO_ENDPOINTS} ? "
        "has(adapter.source) && !has(adapter.model) : !has(adapter.source))",
        "engine.adapters must each have a source and no model, with engine.endpoints no source",
    ),
    Rule(
        "!has(self.engine.adapters) || self.engine.adapters.all(adapter, "
        "self.engine.adapters.exists_one(namesake, namesake.name == adapter.name))",
        "engine.adapters must have different names",
    ),
    _absent("engine.plain", "!has(self.draft) || self.draft.kind != 'none'", "with draft kind none"),
    Rule(
        f"!has(self.engine.plain) || {_NO_ENDPOINTS} || !self.engine.plain.endpoints.exists(address, address in "
        "self.engine.endpoints)",
        "engine.plain.endpoints must be servers without speculation, none of engine.endpoints",
    ),
    Rule(
        "!has(self.target) || !has(self.draft) || !has(self.draft.source) || "
        f"self.draft.source != self.target.source || {or_default('self.draft.revision', repr(''))} != "
        f"{or_default('self.target.revision', repr(''))}",
        "draft.source must be another checkpoint than the target's: a draft as slow as its target saves nothing",
    ),
    Rule(
        "!has(self.engine.arms) || !has(self.engine.arms.speculative) || has(self.pricePerGpuHour)"
        " || has(self.engine.arms.plain.pricePerGpuHour) == has(self.engine.arms.speculative.pricePerGpuHour)",
        "pricePerGpuHour is required for both of engine.arms or for none, if the pair has none",
    ),
)

_WITH_SOURCE = f"self.kind in {list(DRAFTS_WITH_SOURCE)}"
_DRAFT = (
    Rule(
        f"!({_WITH_SOURCE}) || has(self.source)",
        f"source is required for the draft kinds {', '.join(DRAFTS_WITH_SOURCE)}",
    ),
    *(
        _absent(name, f"{_WITH_SOURCE} || self.kind == 'mtp' && has(self.source)", "with this draft kind")
        for name in ("source", "revision", "tokenizer")
    ),
    *_SOURCES,
)

_ARM = (
    _absent("apiKeyEnv", "self.protocol != 'triton'", "with protocol triton"),
    Rule(
        f"self.protocol != 'triton' || {or_default('self.dialect', repr('openai'))} == 'openai'",
        "dialect has no effect with protocol triton, leave it out",
    ),
    Rule(
        f"self.endpoints.all(address, self.protocol == 'triton' ? address.matches('{_GRPC}') : "
        f"address.matches('{_HTTP}'))",
        "endpoints must be grpc(s)://host:port for protocol triton, else http(s)://host:port with or"
        " without a path; and without credentials, query and fragment",
    ),
)

_PLAIN_SERVERS = (
    Rule(
        f"self.endpoints.all(address, address.matches('{_HTTP}'))",
        "endpoints must be http(s)://host:port with or without a path; without credentials, query and fragment",
    ),
)

_TOLERATION = (
    Rule(
        f"{or_default('self.operator', repr('Equal'))} == 'Equal' || {or_default('self.value', repr(''))} == ''",
        "value has no effect with operator Exists, leave it out",
    ),
    Rule(
        f"has(self.key) || {or_default('self.operator', repr('Equal'))} == 'Exists'",
        "operator must be Exists where there is no key",
    ),
    Rule(
        f"!has(self.tolerationSeconds) || {or_default('self.effect', repr(''))} == 'NoExecute'",
        "tolerationSeconds has no effect without effect NoExecute, leave it out",
    ),
)

_ENV_VAR = (
    Rule("has(self.value) != has(self.secret)", "needs either value or secret"),
    Rule(
        f"!(self.name in {list(RESERVED_VARIABLES)}) && !self.name.startsWith('{LWS_PREFIX}')",
        f"name must be none that Slipstream sets: {', '.join(RESERVED_VARIABLES)}",
    ),
)

_SERVING = (
    *(
        Rule(
            f"!has(self.{field}) || self.{field}.all(key, !(key in {list(RESERVED_LABELS)}) && "
            f"!key.startsWith('{RESERVED_PREFIX}/'))",
            f"{field} must have none that Slipstream sets",
        )
        for field in ("labels", "annotations")
    ),
    _absent("replicas", "!has(self.autoscaling)", "with autoscaling"),
)

_AUTOSCALING = (
    Rule(
        f"{or_default('self.minReplicas', str(default_of(Autoscaling, 'minReplicas')))} <= self.maxReplicas",
        "maxReplicas must be at least minReplicas",
    ),
)

_INFERENCE_POOL = (
    Rule(
        "!has(self.hostnames) || size(self.hostnames) == 0 || has(self.gateway)",
        "hostnames has no effect without gateway, leave it out",
    ),
)

_IS_RECREATE = f"{or_default('self.strategy', repr('RollingUpdate'))} == 'Recreate'"
_UPDATE = (
    *(
        Rule(
            f"!({_IS_RECREATE}) || {or_default(f'self.{name}', default)} == {default}",
            f"{name} has no effect with strategy Recreate, leave it out",
        )
        for name, default in (("maxSurge", "1"), ("maxUnavailable", "0"))
    ),
    Rule(
        f"{or_default('self.maxSurge', '1')} > 0 || {or_default('self.maxUnavailable', '0')} > 0",
        "maxUnavailable must be above 0 with maxSurge 0: otherwise no server can be replaced",
    ),
)

RULES: Mapping[type, tuple[Rule, ...]] = {
    ModelPairSpec: _PAIR,
    Target: _SOURCES,
    Draft: _DRAFT,
    ExternalArm: _ARM,
    Adapter: _ADAPTER,
    PlainServers: _PLAIN_SERVERS,
    Toleration: _TOLERATION,
    EnvVar: _ENV_VAR,
    Serving: _SERVING,
    InferencePool: _INFERENCE_POOL,
    Update: _UPDATE,
    Autoscaling: _AUTOSCALING,
    **POLICY_RULES,
}
