"""Rules within one pair that its types cannot express, by the type that they apply to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from slipstream_core.manifest.addresses import address_form, check_address
from slipstream_core.manifest.autoscaling import Autoscaling
from slipstream_core.manifest.canary_checks import CanaryCheck, PrometheusQuery, Webhook
from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.engines import (
    Adapter,
    ExternalArm,
    PlainServers,
    SlipstreamEngine,
    VllmEngine,
    WireProtocol,
)
from slipstream_core.manifest.inference_pool import InferencePool
from slipstream_core.manifest.model_pair import DRAFTS_OF_VLLM, DRAFTS_WITH_SOURCE, Draft, ModelPairSpec, Target
from slipstream_core.manifest.rule import (
    Rule,
    Term,
    defaults_of,
    field,
    filled,
    given,
    literal,
    no_effect,
    required,
    rule,
    unique,
)
from slipstream_core.manifest.serving import Canary, EnvVar, Resources, Serving, Toleration, Update
from slipstream_core.manifest.sources import EMBEDDED, EMBEDDED_SOURCES, FORMS
from slipstream_core.manifest.vllm_command import (
    ADAPTERS_FIELD,
    NO_DATA_PARALLELISM,
    STARTED_FIELDS,
    is_data_parallel,
    is_short,
    set_by_field,
    set_by_slipstream,
)

RESERVED_VARIABLES = ("HOME", "NVIDIA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "VLLM_PLUGINS", "VLLM_HOST_IP")
RESERVED_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("name", "part-of", "component", "managed-by"))
RESERVED_PREFIX = "slipstream.dev/"  # of labels and annotations
LWS_PREFIX = "LWS_"  # of LeaderWorkerSet's own variables
_OUTLINES = {
    WireProtocol.TRITON: r"^grpcs?://[^/@?#\\s]+:[0-9]+$",
    WireProtocol.OPENAI: r"^https?://[^/@?#\\s]+(/[^?#\\s]*)?$",
}
_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", start=1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}


def _remote_source(path: str, source: Term) -> Iterator[Rule]:
    """The rules for the form of the source at `path`."""
    for scheme, (pattern, form) in FORMS.items():
        yield rule(path, ~source.starts_with(scheme) | source.matches(pattern), f"must be {form}, got {{}}")


def _source(path: str) -> Iterator[Rule]:
    source = field("item") if path.endswith("[]") else field(path, "")
    holds = ~source.starts_with(EMBEDDED) | source.is_in(*EMBEDDED_SOURCES)
    yield rule(path, holds, f"must be a folder or one of {', '.join(EMBEDDED_SOURCES)}, got {{}}")
    yield from _remote_source(path, source)


def _addresses(protocol: WireProtocol, when: Term | None = None) -> Rule:
    """The rule for `endpoints` if `when` is true. CEL checks outlines of addresses, the schema that they differ."""

    def problems(owner: Any, base: str) -> Iterator[Problem]:
        endpoints = owner.endpoints if when is None or when.of(owner, None) else ()
        for index, endpoint in enumerate(endpoints):
            shown = "an address with an @" if "@" in endpoint else show(endpoint)  # it may contain a password
            if message := check_address(endpoint, protocol):
                yield Problem(f"{base}.endpoints[{index}]", f"{message}, got {shown}")
            elif endpoint in endpoints[:index]:
                yield Problem(f"{base}.endpoints[{index}]", f"is listed twice: {shown}")

    unless = "" if when is None else f"{(~when).cel} || "
    cel = f"{unless}!has(self.endpoints) || self.endpoints.all(item, item.matches('{_OUTLINES[protocol]}'))"
    path = " with or without a path" if protocol is WireProtocol.OPENAI else ""
    form = f"endpoints must be {address_form(protocol)}{path}, without credentials, query and fragment"
    return Rule(problems, cel, form)


def _url(name: str) -> Rule:
    """The rule for the HTTP address in the field `name`. CEL checks its outline."""

    def problems(owner: Any, base: str) -> Iterator[Problem]:
        if message := check_address(getattr(owner, name), WireProtocol.OPENAI):
            yield Problem(f"{base}.{name}", message.partition(";")[0])

    form = f"{name} must be {address_form(WireProtocol.OPENAI)} with or without a path, without credentials and query"
    return Rule(problems, f"self.{name}.matches('{_OUTLINES[WireProtocol.OPENAI]}')", form)


def _check_arguments(engine: VllmEngine, path: str) -> Iterator[Problem]:
    for index, argument in enumerate(() if _NOT_STARTED.of(engine, None) else engine.arguments):
        message = None
        if is_data_parallel(argument):
            message = NO_DATA_PARALLELISM
        elif is_short(argument):
            message = "must be the long form of an argument"
        elif set_by_slipstream(argument):
            message = "is set by Slipstream, leave it out"
        elif (name := set_by_field(argument)) and (engine.adapters or name != ADAPTERS_FIELD):
            message = f"is set by {name}"
        if message is not None:
            yield Problem(f"{path}.arguments[{index}]", f"{message}, got {show(argument)}")


def _check_resources(resources: Resources, path: str) -> Iterator[Problem]:
    for name, wanted in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and _amount(wanted) > _amount(limit):
            yield Problem(f"{path}.requests.{name}", f"must be at most the limit {limit}, got {wanted}")


def _amount(quantity: str) -> Decimal:
    """A Kubernetes quantity, `500m` or `16Gi`, as a number."""
    digits = quantity.rstrip("mkKMGTPEi")
    return Decimal(digits) * _SUFFIXES[quantity[len(digits) :]]


_KIND = field("engine.kind")
_SLIPSTREAM, _VLLM, _EXTERNAL = (_KIND.is_in(kind) for kind in ("slipstream", "vllm", "external"))
_HAS_ENDPOINTS = filled("engine.endpoints")
_STARTS_VLLM = _VLLM & ~_HAS_ENDPOINTS
_IN_TRITON = ~_HAS_ENDPOINTS & field("engine.serving", "openai").is_in("triton")
_RUNS_VLLM = _STARTS_VLLM & ~_IN_TRITON & given("serving")
_DRAFT_KIND = field("draft.kind", "")
_SAME_SOURCE = field("draft.source", "").equals(field("target.source", ""))
_SAME_REVISION = field("draft.revision", "").equals(field("target.revision", ""))
_PRICES = {name: given(f"engine.arms.{name}.pricePerGpuHour") for name in ("plain", "speculative")}
_GPUS, _NODES = field("serving.gpus", 1), field("serving.nodes", 1)
_TENSOR, _PIPELINE = field("engine.tensorParallelSize", 1), field("engine.pipelineParallelSize", 1)
_PROCESSES = _TENSOR.times(_PIPELINE)

_PAIR = (
    *(
        required(name, when, f"for engine kind {why}{note}")
        for name, note in (("target", ""), ("draft", "; kind none for a target alone"))
        for when, why in ((_SLIPSTREAM, "slipstream"), (_STARTS_VLLM, "vllm without spec.engine.endpoints"))
    ),
    *(no_effect(name, _EXTERNAL, "with engine kind external") for name in ("target", "draft", "serving")),
    no_effect("serving", _HAS_ENDPOINTS, "with spec.engine.endpoints"),
    no_effect("serving", _IN_TRITON, "with serving triton"),
    *(
        rule("draft.kind", ~(_SLIPSTREAM & _DRAFT_KIND.is_in(kind)), f"{kind} is for engine kind vllm")
        for kind in DRAFTS_OF_VLLM
    ),
    *(
        rule(path, ~(_VLLM & has_more), f"{note}is for engine kind slipstream: vLLM has one draft")
        for path, note, has_more in (
            ("draft.kind", "hybrid ", _DRAFT_KIND.is_in("hybrid")),
            ("draft.alternatives", "", filled("draft.alternatives")),
            ("draft.candidates", "", given("draft.candidates")),
        )
    ),
    no_effect("draft.tokenizer", _STARTS_VLLM, "with engine kind vllm, which uses the tokenizer in spec.draft.source"),
    rule(
        "draft.source",
        ~given("draft.source") | ~_SAME_SOURCE | ~_SAME_REVISION,
        "must be another checkpoint than the target's: a draft as slow as its target saves nothing, got {}",
    ),
    no_effect("engine.plain", _DRAFT_KIND.is_in("none"), "with draft kind none"),
    *(
        rule(
            f"engine.arms.{name}.pricePerGpuHour",
            given("pricePerGpuHour") | ~given("engine.arms.speculative") | _PRICES[name] | ~_PRICES[other],
            "is required: the other arm has a price, and the pair has none",
        )
        for name, other in (("plain", "speculative"), ("speculative", "plain"))
    ),
    *(
        rule(
            path,
            ~_SLIPSTREAM | number.at_most(literal(1)),
            "must be at most 1: Slipstream's engine uses one GPU, got {}",
        )
        for path, number in (("serving.gpus", _GPUS), ("serving.nodes", _NODES))
    ),
    rule(
        "serving.autoscaling.kvCacheUsage",
        ~_SLIPSTREAM | ~given("serving.autoscaling.kvCacheUsage"),
        "is for engine kind vllm: Slipstream's engine has no paged cache, got {}",
    ),
    rule(
        "serving.inferencePool",
        ~_SLIPSTREAM | ~given("serving.inferencePool"),
        "is for engine kind vllm: endpoint pickers do not speak Triton's protocol, leave it out",
    ),
    rule(
        "serving.gpus",
        ~_RUNS_VLLM | _GPUS.is_in(0) | _GPUS.times(_NODES).equals(_PROCESSES),
        "must be as many GPUs as vLLM uses: gpus × nodes ({}) = tensorParallelSize ({}) × pipelineParallelSize ({}), "
        "got {}",
        _NODES,
        _TENSOR,
        _PIPELINE,
        _GPUS,
    ),
    rule(
        "serving.nodes",
        ~_RUNS_VLLM | ~_GPUS.is_in(0) | _NODES.divides(_PROCESSES),
        "must divide the processes of vLLM: tensorParallelSize ({}) × pipelineParallelSize ({}), got {}",
        _TENSOR,
        _PIPELINE,
        _NODES,
    ),
)

_BY_TRITON = field("serving", "openai").is_in("triton")
_NOT_STARTED = filled("endpoints") | _BY_TRITON
_ENGINE = (
    _addresses(WireProtocol.TRITON, _BY_TRITON),
    _addresses(WireProtocol.OPENAI, ~_BY_TRITON),
    no_effect("tritonModel", ~_BY_TRITON, "with serving openai"),
    no_effect("model", _BY_TRITON, "with serving triton"),
    no_effect("apiKeyEnv", _BY_TRITON, "with serving triton"),
    *(
        no_effect(name, when, f"with {why}", defaults_of(VllmEngine)[name])
        for name in STARTED_FIELDS
        for when, why in (
            (filled("endpoints"), "spec.engine.endpoints"),
            (~filled("endpoints") & _BY_TRITON, "serving triton"),
        )
    ),
    Rule(_check_arguments),
    rule(
        "plain.endpoints[]",
        ~Term("(has(self.endpoints) && item in self.endpoints)", lambda engine, item: item in engine.endpoints),
        "must be a server without speculation, none of spec.engine.endpoints, got {}",
    ),
    no_effect("adapters", _BY_TRITON, "with serving triton", ()),
    unique("adapters", "name", "is listed twice: {}"),
    required("adapters[].source", ~filled("endpoints") & ~_BY_TRITON, "without spec.engine.endpoints"),
    no_effect("adapters[].source", filled("endpoints"), "with spec.engine.endpoints"),
    no_effect("adapters[].model", ~filled("endpoints"), "without spec.engine.endpoints"),
)

_OF_CHECKPOINTS = {"source": None, "revision": None, "tokenizer": None, "alternatives": (), "candidates": None}
_DRAFT = (
    *(required("source", field("kind").is_in(kind), f"for draft kind {kind}") for kind in DRAFTS_WITH_SOURCE),
    *(
        no_effect(name, field("kind").is_in(kind), f"with draft kind {kind}", default)
        for kind in ("ngram", "suffix", "none")
        for name, default in _OF_CHECKPOINTS.items()
    ),
    *(
        no_effect(name, field("kind").is_in("mtp") & ~given("source"), "with draft kind mtp", default)
        for name, default in _OF_CHECKPOINTS.items()
        if name != "source"
    ),
    *_source("source"),
    *_source("tokenizer"),
    *_source("alternatives[]"),
    rule(
        "alternatives[]",
        ~given("source") | ~field("item").equals(field("source", "")),
        "must be another checkpoint than spec.draft.source, got {}",
    ),
    unique("alternatives", "", "must be another checkpoint than the drafts before it, got {}"),
)

_EXISTS = field("operator", "Equal").is_in("Exists")
_RECREATES = field("strategy", "RollingUpdate").is_in("Recreate")
_SURGE, _UNAVAILABLE = field("maxSurge", 1), field("maxUnavailable", 0)
_LEAST, _MOST = field("minReplicas", 1), field("maxReplicas")
_IS_RESERVED = field("item").is_in(*RESERVED_LABELS) | field("item").starts_with(RESERVED_PREFIX)

PAIR_RULES: Mapping[type, tuple[Rule, ...]] = {
    ModelPairSpec: _PAIR,
    Target: (*_source("source"), *_source("tokenizer")),
    Draft: _DRAFT,
    SlipstreamEngine: (_addresses(WireProtocol.TRITON),),
    VllmEngine: _ENGINE,
    PlainServers: (_addresses(WireProtocol.OPENAI),),
    Adapter: (
        rule("source", ~field("source", "").starts_with(EMBEDDED), "must be the folder of an adapter, got {}"),
        *_remote_source("source", field("source", "")),
    ),
    ExternalArm: (
        _addresses(WireProtocol.TRITON, field("protocol").is_in("triton")),
        _addresses(WireProtocol.OPENAI, ~field("protocol").is_in("triton")),
        no_effect("apiKeyEnv", field("protocol").is_in("triton"), "with protocol triton"),
        rule(
            "dialect",
            ~field("protocol").is_in("triton") | field("dialect", "openai").is_in("openai"),
            "has no effect with protocol triton, leave it out, got {}",
        ),
    ),
    Serving: (
        *(rule(f"{name}[]", ~_IS_RESERVED, "is set by Slipstream, leave it out") for name in ("labels", "annotations")),
        unique("env", "name", "is listed twice: {}", cel=False),
        rule(
            "replicas",
            ~given("replicas") | ~given("autoscaling"),
            "has no effect with spec.serving.autoscaling, leave one of them out, got {}",
        ),
    ),
    EnvVar: (
        rule("", ~given("value").equals(given("secret")), "needs either value or secret"),
        rule(
            "name",
            ~field("name").is_in(*RESERVED_VARIABLES) & ~field("name").starts_with(LWS_PREFIX),
            "is set by Slipstream, leave it out, got {}",
        ),
    ),
    Toleration: (
        rule(
            "value",
            ~_EXISTS | field("value", "").is_in(""),
            "has no effect with operator Exists, leave it out, got {}",
        ),
        rule("operator", given("key") | _EXISTS, "must be Exists where there is no key, got {}"),
        no_effect("tolerationSeconds", ~field("effect", "").is_in("NoExecute"), "without effect NoExecute"),
    ),
    Resources: (Rule(_check_resources),),
    Update: (
        no_effect("maxSurge", _RECREATES, "with strategy Recreate", 1),
        no_effect("maxUnavailable", _RECREATES, "with strategy Recreate", 0),
        rule(
            "maxUnavailable",
            _RECREATES | ~_SURGE.is_in(0) | ~_UNAVAILABLE.is_in(0),
            "must be above 0 with maxSurge 0: otherwise no server can be replaced, got {}",
        ),
    ),
    Canary: (unique("checks", "name", "is listed twice: {}"),),
    CanaryCheck: (rule("", ~given("webhook").equals(given("prometheus")), "needs either webhook or prometheus"),),
    Webhook: (_url("url"),),
    PrometheusQuery: (_url("address"), rule("", given("min") | given("max"), "needs min or max")),
    Autoscaling: (
        rule("maxReplicas", _LEAST.at_most(_MOST), "must be at least minReplicas ({}), got {}", _LEAST, _MOST),
    ),
    InferencePool: (no_effect("hostnames", ~given("gateway"), "without gateway", ()),),
}
