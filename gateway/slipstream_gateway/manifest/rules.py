"""What the types alone cannot say: rules within one object, and between the objects of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from slipstream_gateway.manifest.addresses import check_address
from slipstream_gateway.manifest.check import Problem, show
from slipstream_gateway.manifest.objects import (
    EMBEDDED_SOURCES,
    Arms,
    ExternalArm,
    ExternalEngine,
    ManifestObject,
    ModelPair,
    Protocol,
    SlipstreamEngine,
    SpeculationPolicy,
)

_Object = TypeVar("_Object", ModelPair, SpeculationPolicy)
Blamed = tuple[ManifestObject, Problem]


def check_object(item: ManifestObject) -> Iterator[Problem]:
    """What is wrong within one object, beyond its types."""
    if isinstance(item, SpeculationPolicy):
        names = [rule.name for rule in item.spec.classes]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Problem(f"spec.classes[{index}].name", f"another rule is for the class {show(name)}")
        return
    match item.spec.engine:
        case SlipstreamEngine() as engine:
            yield from _check_sources(item)
            yield from _check_endpoints(engine.endpoints, Protocol.TRITON, "spec.engine.endpoints")
        case ExternalEngine(arms=arms):
            for name in ("target", "draft"):
                if getattr(item.spec, name) is not None:
                    yield Problem(f"spec.{name}", "has no effect with engine kind external, leave it out")
            yield from _check_arm(arms.plain, "spec.engine.arms.plain")
            if arms.speculative is not None:
                yield from _check_arm(arms.speculative, "spec.engine.arms.speculative")
            yield from _check_prices(item, arms)


def check_together(objects: Sequence[ManifestObject]) -> Iterator[Blamed]:
    """What is wrong between objects, each problem with the object to blame."""
    pairs = [item for item in objects if isinstance(item, ModelPair)]
    policies = [item for item in objects if isinstance(item, SpeculationPolicy)]
    yield from _repeated(pairs, lambda pair: pair.metadata.name, "metadata.name", "has the name")
    yield from _repeated(policies, lambda policy: policy.metadata.name, "metadata.name", "has the name")
    yield from _repeated(pairs, lambda pair: pair.spec.model, "spec.model", "serves the model")
    yield from _repeated(policies, lambda policy: policy.spec.pair, "spec.pair", "is for the pair")
    yield from _check_triton_models(pairs)
    by_name = {pair.metadata.name: pair for pair in pairs}
    for policy in policies:
        if pair := by_name.get(policy.spec.pair):
            yield from ((policy, problem) for problem in _check_draft_lengths(policy, pair))
        else:
            known = ", ".join(by_name) or "none"
            yield (
                policy,
                Problem("spec.pair", f"no ModelPair is named {show(policy.spec.pair)} (there is: {known})"),
            )


def _repeated(items: Iterable[_Object], key: Callable[[_Object], str], path: str, what: str) -> Iterator[Blamed]:
    seen: set[str] = set()
    for item in items:
        value = key(item)
        if value in seen:
            yield item, Problem(path, f"another {type(item).__name__} {what} {show(value)}")
        seen.add(value)


def _check_triton_models(pairs: Iterable[ModelPair]) -> Iterator[Blamed]:
    """Pairs that one local Triton serves need different models there."""
    owners: dict[str, ModelPair] = {}
    for pair in pairs:
        engine = pair.spec.engine
        if isinstance(engine, ExternalEngine) or engine.endpoints:
            continue
        name = engine.triton_model or pair.metadata.name
        owner = owners.setdefault(name, pair)
        if owner is not pair:
            message = f"ModelPair/{owner.metadata.name} has the Triton model {show(name)} already"
            yield pair, Problem("spec.engine.tritonModel", message)


def _check_sources(pair: ModelPair) -> Iterator[Problem]:
    target, draft = pair.spec.target, pair.spec.draft
    if target is None:
        yield Problem("spec.target", "is required for engine kind slipstream")
    else:
        yield from _check_source(target.source, "spec.target.source")
    if draft is None:
        yield Problem("spec.draft", "is required for engine kind slipstream; kind none for a target alone")
    elif draft.kind == "model" and draft.source is None:
        yield Problem("spec.draft.source", "is required for draft kind model")
    elif draft.kind != "model" and draft.source is not None:
        yield Problem("spec.draft.source", f"has no effect with draft kind {draft.kind}, leave it out")
    elif draft.source is not None:
        yield from _check_source(draft.source, "spec.draft.source")


def _check_source(source: str, path: str) -> Iterator[Problem]:
    if source.startswith("embedded:") and source not in EMBEDDED_SOURCES:
        yield Problem(path, f"must be a folder or one of {', '.join(EMBEDDED_SOURCES)}, got {show(source)}")


def _check_arm(arm: ExternalArm, path: str) -> Iterator[Problem]:
    yield from _check_endpoints(arm.endpoints, arm.protocol, f"{path}.endpoints")
    if arm.api_key_env is not None and arm.protocol is Protocol.TRITON:
        yield Problem(f"{path}.apiKeyEnv", "has no effect with protocol triton, leave it out")


def _check_prices(pair: ModelPair, arms: Arms) -> Iterator[Problem]:
    """Prices of the two arms are compared: with that of one alone, nothing would be."""
    if arms.speculative is None or pair.spec.price_per_gpu_hour is not None:
        return
    for name, arm, other in (("plain", arms.plain, arms.speculative), ("speculative", arms.speculative, arms.plain)):
        if arm.price_per_gpu_hour is None and other.price_per_gpu_hour is not None:
            message = "is required: the other arm has one, and the pair has none"
            yield Problem(f"spec.engine.arms.{name}.pricePerGpuHour", message)


def _check_endpoints(endpoints: Sequence[str], protocol: Protocol, path: str) -> Iterator[Problem]:
    for index, endpoint in enumerate(endpoints):
        shown = "an address with an @" if "@" in endpoint else show(endpoint)  # it may hold a password
        if message := check_address(endpoint, protocol):
            yield Problem(f"{path}[{index}]", f"{message}, got {shown}")
        elif endpoint in endpoints[:index]:
            yield Problem(f"{path}[{index}]", f"is there twice: {shown}")


def _check_draft_lengths(policy: SpeculationPolicy, pair: ModelPair) -> Iterator[Problem]:
    """No draft may be longer than what the pair allows."""
    limit = pair.spec.max_draft_tokens
    lengths = [("spec.draftTokens", policy.spec.draft_tokens)]
    lengths += [
        (f"spec.classes[{index}].draftTokens", rule.draft_tokens) for index, rule in enumerate(policy.spec.classes)
    ]
    for path, length in lengths:
        if length is not None and length > limit:
            name = pair.metadata.name
            yield Problem(path, f"must be at most maxDraftTokens of ModelPair/{name} ({limit}), got {length}")
