"""Rules within one pair that its types cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

import msgspec

from slipstream_core.manifest.addresses import check_address
from slipstream_core.manifest.autoscaling import Autoscaling
from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.engines import (
    Arms,
    DialectName,
    ExternalArm,
    ExternalEngine,
    PlainServers,
    SlipstreamEngine,
    VllmEngine,
    WireProtocol,
)
from slipstream_core.manifest.objects import (
    DRAFTS_OF_VLLM,
    DRAFTS_WITH_SOURCE,
    Draft,
    ModelPairSpec,
    Target,
)
from slipstream_core.manifest.serving import EnvVar, Resources, Serving, Toleration, Update
from slipstream_core.manifest.sources import EMBEDDED, form_problem
from slipstream_core.manifest.vllm_command import ADAPTERS_FIELD, is_short, set_by_field, set_by_slipstream

STARTED_VLLM_FIELDS = (  # the fields of vLLM's engine for servers that are started
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "dtype",
    "quantization",
    "max_model_len",
    "max_num_seqs",
    "arguments",
)
RESERVED_VARIABLES = ("HOME", "NVIDIA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "VLLM_PLUGINS", "VLLM_HOST_IP")
RESERVED_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("name", "part-of", "component", "managed-by"))
RESERVED_PREFIX = "slipstream.dev"  # of labels and annotations
LWS_PREFIX = "LWS_"  # of LeaderWorkerSet's own variables
_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", start=1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}


def check_pair(spec: ModelPairSpec) -> Iterator[Problem]:
    """Yields every problem within one pair."""
    match spec.engine:
        case SlipstreamEngine() as engine:
            yield from _check_sources(spec, "for engine kind slipstream")
            yield from _check_endpoints(engine.endpoints, WireProtocol.TRITON, "spec.engine.endpoints")
            if engine.endpoints and spec.serving is not None:
                yield Problem("spec.serving", "has no effect with spec.engine.endpoints, leave one of them out")
            if spec.draft is not None and spec.draft.kind in DRAFTS_OF_VLLM:
                yield Problem("spec.draft.kind", f"{spec.draft.kind} is for engine kind vllm")
            if spec.serving is not None:
                yield from _check_one_gpu(spec.serving)
                yield from _check_cache_usage(spec.serving.autoscaling)
                if spec.serving.inference_pool is not None:
                    message = "is for engine kind vllm: endpoint pickers do not speak Triton's protocol, leave it out"
                    yield Problem("spec.serving.inferencePool", message)
        case VllmEngine() as engine:
            yield from _check_vllm(spec, engine)
        case ExternalEngine(arms=arms):
            for name in ("target", "draft", "serving"):
                if getattr(spec, name) is not None:
                    yield Problem(f"spec.{name}", "has no effect with engine kind external, leave it out")
            yield from _check_arm(arms.plain, "spec.engine.arms.plain")
            if arms.speculative is not None:
                yield from _check_arm(arms.speculative, "spec.engine.arms.speculative")
            yield from _check_prices(spec, arms)
    if spec.serving is not None:
        yield from _check_serving(spec.serving)


def _check_vllm(spec: ModelPairSpec, engine: VllmEngine) -> Iterator[Problem]:
    yield from _check_sources(spec, "" if engine.endpoints else "for engine kind vllm without spec.engine.endpoints")
    protocol = WireProtocol.TRITON if engine.serving == "triton" else WireProtocol.OPENAI
    yield from _check_endpoints(engine.endpoints, protocol, "spec.engine.endpoints")
    if spec.draft is not None and spec.draft.kind == "hybrid":
        yield Problem("spec.draft.kind", "hybrid is for engine kind slipstream: vLLM has one draft")
    for name in ("alternatives", "candidates"):
        if spec.draft is not None and getattr(spec.draft, name):
            yield Problem(f"spec.draft.{name}", "is for engine kind slipstream: vLLM has one draft")
    if spec.draft is not None and spec.draft.tokenizer is not None and not engine.endpoints:
        message = "has no effect with engine kind vllm, which uses the tokenizer in spec.draft.source; leave it out"
        yield Problem("spec.draft.tokenizer", message)
    yield from _check_started_vllm(spec, engine)
    foreign = ("model", "api_key_env") if engine.serving == "triton" else ("triton_model",)
    for name in foreign:
        if getattr(engine, name) is not None:
            yield Problem(f"spec.engine.{camel(name)}", f"has no effect with serving {engine.serving}, leave it out")
    if engine.plain is not None:
        yield from _check_plain_servers(spec, engine, engine.plain)
    yield from _check_adapters(engine)


def _check_adapters(engine: VllmEngine) -> Iterator[Problem]:
    if engine.adapters and engine.serving == "triton":
        yield Problem("spec.engine.adapters", "has no effect with serving triton, leave it out")
        return
    names = [adapter.name for adapter in engine.adapters]
    for index, adapter in enumerate(engine.adapters):
        path = f"spec.engine.adapters[{index}]"
        if adapter.name in names[:index]:
            yield Problem(f"{path}.name", f"is listed twice: {show(adapter.name)}")
        if engine.endpoints:
            if adapter.source is not None:
                yield Problem(f"{path}.source", "has no effect with spec.engine.endpoints, leave it out")
            continue
        if adapter.model is not None:
            yield Problem(f"{path}.model", "has no effect without spec.engine.endpoints, leave it out")
        if adapter.source is None:
            yield Problem(f"{path}.source", "is required without spec.engine.endpoints")
        elif adapter.source.startswith(EMBEDDED):
            yield Problem(f"{path}.source", f"must be the folder of an adapter, got {show(adapter.source)}")
        else:
            yield from _check_source(adapter.source, f"{path}.source")


def _check_started_vllm(spec: ModelPairSpec, engine: VllmEngine) -> Iterator[Problem]:
    """Problems of the fields for servers that are started."""
    without = "spec.engine.endpoints" if engine.endpoints else "serving triton" if engine.serving == "triton" else ""
    if without:
        for name in STARTED_VLLM_FIELDS:
            if getattr(engine, name) != _default(engine, name):
                yield Problem(f"spec.engine.{camel(name)}", f"has no effect with {without}, leave it out")
        if spec.serving is not None:
            yield Problem("spec.serving", f"has no effect with {without}, leave it out")
        return
    for index, argument in enumerate(engine.arguments):
        if is_short(argument):
            yield Problem(
                f"spec.engine.arguments[{index}]", f"must be the long form of an argument, got {show(argument)}"
            )
        elif set_by_slipstream(argument):
            yield Problem(
                f"spec.engine.arguments[{index}]", f"is set by Slipstream, leave it out, got {show(argument)}"
            )
        elif (field := set_by_field(argument)) and (engine.adapters or field != ADAPTERS_FIELD):
            yield Problem(f"spec.engine.arguments[{index}]", f"is set by {field}, got {show(argument)}")
    if spec.serving is not None:
        yield from _check_parallel(spec.serving, engine)


def _check_parallel(serving: Serving, engine: VllmEngine) -> Iterator[Problem]:
    """GPUs that vLLM would not use, or would lack."""
    tensor, pipeline = engine.tensor_parallel_size, engine.pipeline_parallel_size
    used, nodes = tensor * pipeline, serving.nodes
    uses = f"tensorParallelSize {tensor} × pipelineParallelSize {pipeline} uses {used}"
    if serving.gpus == 0:
        if used % nodes:
            yield Problem("spec.serving.nodes", f"must divide the processes of vLLM: {uses}, got {nodes}")
    elif serving.gpus * nodes != used:
        has = f"{serving.gpus} on each of {nodes} nodes are {serving.gpus * nodes}" if nodes > 1 else f"{serving.gpus}"
        yield Problem("spec.serving.gpus", f"must be as many GPUs as vLLM uses: {uses}, got {has}")


def _check_one_gpu(serving: Serving) -> Iterator[Problem]:
    for name in ("gpus", "nodes"):
        if getattr(serving, name) > 1:
            message = f"must be at most 1: Slipstream's engine uses one GPU, got {getattr(serving, name)}"
            yield Problem(f"spec.serving.{name}", message)


def _check_cache_usage(autoscaling: Autoscaling | None) -> Iterator[Problem]:
    if autoscaling is not None and autoscaling.kv_cache_usage is not None:
        message = f"is for engine kind vllm: Slipstream's engine has no paged cache, got {autoscaling.kv_cache_usage:g}"
        yield Problem("spec.serving.autoscaling.kvCacheUsage", message)


def _default(engine: VllmEngine, name: str) -> object:
    return next(field.default for field in msgspec.structs.fields(engine) if field.name == name)


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _check_plain_servers(spec: ModelPairSpec, engine: VllmEngine, plain: PlainServers) -> Iterator[Problem]:
    if spec.draft is not None and spec.draft.kind == "none":
        yield Problem("spec.engine.plain", "has no effect with draft kind none, leave it out")
    yield from _check_endpoints(plain.endpoints, WireProtocol.OPENAI, "spec.engine.plain.endpoints")
    for index, endpoint in enumerate(plain.endpoints):
        if endpoint in engine.endpoints:
            message = f"must be a server without speculation, and {show(endpoint)} is one of spec.engine.endpoints"
            yield Problem(f"spec.engine.plain.endpoints[{index}]", message)


def _check_sources(spec: ModelPairSpec, required: str) -> Iterator[Problem]:
    """Problems of target and draft. `required` says under which condition they are required; it is empty where they are
    optional."""
    target, draft = spec.target, spec.draft
    if target is not None:
        yield from _check_source(target.source, "spec.target.source")
        yield from _check_source(target.tokenizer or "", "spec.target.tokenizer")
    elif required:
        yield Problem("spec.target", f"is required {required}")
    if draft is None:
        if required:
            yield Problem("spec.draft", f"is required {required}; kind none for a target alone")
    elif draft.kind in DRAFTS_WITH_SOURCE or (draft.kind == "mtp" and draft.source is not None):
        yield from _check_draft_model(draft, target)
    else:
        for name in ("source", "revision", "tokenizer", "alternatives", "candidates"):
            if getattr(draft, name):
                yield Problem(f"spec.draft.{name}", f"has no effect with draft kind {draft.kind}, leave it out")


def _check_draft_model(draft: Draft, target: Target | None) -> Iterator[Problem]:
    if draft.source is None:
        yield Problem("spec.draft.source", f"is required for draft kind {draft.kind}")
        return
    yield from _check_source(draft.source, "spec.draft.source")
    yield from _check_source(draft.tokenizer or "", "spec.draft.tokenizer")
    for index, source in enumerate(draft.alternatives):
        path = f"spec.draft.alternatives[{index}]"
        yield from _check_source(source, path)
        if source in (draft.source, *draft.alternatives[:index]):
            yield Problem(path, f"must be another checkpoint than the drafts before it, got {show(source)}")
    if target is not None and (draft.source, draft.revision) == (target.source, target.revision):
        message = "must be another checkpoint than the target's: a draft as slow as its target saves nothing"
        yield Problem("spec.draft.source", f"{message}, got {show(draft.source)}")


def _check_source(source: str, path: str) -> Iterator[Problem]:
    if form := form_problem(source):
        yield Problem(path, f"must be {form}, got {show(source)}")


def _check_arm(arm: ExternalArm, path: str) -> Iterator[Problem]:
    yield from _check_endpoints(arm.endpoints, arm.protocol, f"{path}.endpoints")
    if arm.api_key_env is not None and arm.protocol is WireProtocol.TRITON:
        yield Problem(f"{path}.apiKeyEnv", "has no effect with protocol triton, leave it out")
    if arm.dialect is not DialectName.OPENAI and arm.protocol is WireProtocol.TRITON:
        yield Problem(
            f"{path}.dialect", f"has no effect with protocol triton, leave it out, got {show(str(arm.dialect))}"
        )


def _check_prices(spec: ModelPairSpec, arms: Arms) -> Iterator[Problem]:
    """The prices of the two arms are compared, so that one price alone would be useless."""
    if arms.speculative is None or spec.price_per_gpu_hour is not None:
        return
    for name, arm, other in (("plain", arms.plain, arms.speculative), ("speculative", arms.speculative, arms.plain)):
        if arm.price_per_gpu_hour is None and other.price_per_gpu_hour is not None:
            message = "is required: the other arm has a price, and the pair has none"
            yield Problem(f"spec.engine.arms.{name}.pricePerGpuHour", message)


def _check_endpoints(endpoints: Sequence[str], protocol: WireProtocol, path: str) -> Iterator[Problem]:
    for index, endpoint in enumerate(endpoints):
        shown = "an address with an @" if "@" in endpoint else show(endpoint)  # it may contain a password
        if message := check_address(endpoint, protocol):
            yield Problem(f"{path}[{index}]", f"{message}, got {shown}")
        elif endpoint in endpoints[:index]:
            yield Problem(f"{path}[{index}]", f"is listed twice: {shown}")


def _check_serving(serving: Serving) -> Iterator[Problem]:
    """Values for which Kubernetes would refuse the servers' Deployment, reported by the field that they come from."""
    for index, toleration in enumerate(serving.tolerations):
        yield from _check_toleration(toleration, f"spec.serving.tolerations[{index}]")
    names = [variable.name for variable in serving.env]
    for index, variable in enumerate(serving.env):
        yield from _check_variable(variable, f"spec.serving.env[{index}]", names[:index])
    for field in ("labels", "annotations"):
        for name in getattr(serving, field):
            if _is_reserved(name):
                yield Problem(f"spec.serving.{field}.{name}", "is set by Slipstream, leave it out")
    yield from _check_resources(serving.resources)
    yield from _check_update(serving.update)
    if serving.autoscaling is not None:
        yield from _check_autoscaling(serving.autoscaling, serving.replicas)
    pool = serving.inference_pool
    if pool is not None and pool.hostnames and pool.gateway is None:
        yield Problem("spec.serving.inferencePool.hostnames", "has no effect without gateway, leave it out")


def _check_update(update: Update) -> Iterator[Problem]:
    if update.strategy == "Recreate":
        for name in ("max_surge", "max_unavailable"):
            if getattr(update, name) != getattr(Update(), name):
                message = "has no effect with strategy Recreate, leave it out"
                yield Problem(f"spec.serving.update.{camel(name)}", message)
    elif not update.max_surge and not update.max_unavailable:
        message = "must be above 0 with maxSurge 0: otherwise no server can be replaced, got 0"
        yield Problem("spec.serving.update.maxUnavailable", message)


def _check_autoscaling(autoscaling: Autoscaling, replicas: int | None) -> Iterator[Problem]:
    if replicas is not None:
        message = f"has no effect with spec.serving.autoscaling, leave one of them out, got {replicas}"
        yield Problem("spec.serving.replicas", message)
    if autoscaling.min_replicas > autoscaling.max_replicas:
        message = f"must be at least minReplicas {autoscaling.min_replicas}, got {autoscaling.max_replicas}"
        yield Problem("spec.serving.autoscaling.maxReplicas", message)


def _check_variable(variable: EnvVar, path: str, earlier: Sequence[str]) -> Iterator[Problem]:
    if (variable.value is None) == (variable.secret is None):
        yield Problem(path, "needs either value or secret")
    if variable.name in RESERVED_VARIABLES or variable.name.startswith(LWS_PREFIX):
        yield Problem(f"{path}.name", f"is set by Slipstream, leave it out, got {show(variable.name)}")
    if variable.name in earlier:
        yield Problem(f"{path}.name", f"is listed twice: {show(variable.name)}")


def _is_reserved(name: str) -> bool:
    """Whether a label or annotation is one that Slipstream sets."""
    return name in RESERVED_LABELS or name.startswith(f"{RESERVED_PREFIX}/")


def _check_toleration(toleration: Toleration, path: str) -> Iterator[Problem]:
    if toleration.operator == "Exists" and toleration.value:
        yield Problem(f"{path}.value", f"has no effect with operator Exists, leave it out, got {toleration.value!r}")
    if toleration.operator == "Equal" and toleration.key is None:
        yield Problem(f"{path}.operator", "must be Exists where there is no key, got 'Equal'")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield Problem(f"{path}.tolerationSeconds", "has no effect without effect NoExecute, leave it out")


def _check_resources(resources: Resources) -> Iterator[Problem]:
    for name, wanted in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and _amount(wanted) > _amount(limit):
            yield Problem(f"spec.serving.resources.requests.{name}", f"must be at most the limit {limit}, got {wanted}")


def _amount(quantity: str) -> Decimal:
    """A Kubernetes quantity, `500m` or `16Gi`, as a number."""
    digits = quantity.rstrip("mkKMGTPEi")
    return Decimal(digits) * _SUFFIXES[quantity[len(digits) :]]
