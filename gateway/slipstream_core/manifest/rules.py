"""Rules between the objects of a manifest. `pair_rules` and `policy_rules` have those within one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from slipstream_core.manifest.adapters import adapter_name, adapters_of
from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.engines import ExternalEngine, VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.pair_rules import PAIR_RULES
from slipstream_core.manifest.policy_rules import POLICY_RULES
from slipstream_core.manifest.rule import problems_of
from slipstream_core.manifest.speculation_policy import ManifestObject, SpeculationPolicy

_Object = TypeVar("_Object", ModelPair, SpeculationPolicy)
Blamed = tuple[ManifestObject, Problem]

_MAX_NAMES = 8


def check_object(item: ManifestObject) -> Iterator[Problem]:
    """Yields every problem within one object beyond its types."""
    return problems_of(item.spec, PAIR_RULES if isinstance(item, ModelPair) else POLICY_RULES, "spec")


def check_together(objects: Sequence[ManifestObject]) -> Iterator[Blamed]:
    """Yields every problem between objects, each with the object at fault.

    Names are unique within their namespace, models within the whole manifest.
    """
    pairs = [item for item in objects if isinstance(item, ModelPair)]
    policies = [item for item in objects if isinstance(item, SpeculationPolicy)]
    yield from _repeated(pairs, lambda pair: pair.metadata.key, "metadata.name", "has the name")
    yield from _repeated(policies, lambda policy: policy.metadata.key, "metadata.name", "has the name")
    yield from _repeated(pairs, lambda pair: pair.spec.model, "spec.model", "serves the model")
    yield from _repeated(policies, pair_key_of, "spec.pair", "is for the pair")
    yield from _check_adapter_models(pairs)
    yield from _check_triton_models(pairs)
    by_key = {pair.metadata.key: pair for pair in pairs}
    for policy in policies:
        if pair := by_key.get(pair_key_of(policy)):
            yield from ((policy, problem) for problem in check_against_pair(policy, pair))
        else:
            yield policy, missing_pair(policy, by_key)


def pair_key_of(policy: SpeculationPolicy) -> str:
    """The key of the policy's pair, which is in the policy's own namespace."""
    namespace = policy.metadata.namespace
    return policy.spec.pair if namespace is None else f"{namespace}/{policy.spec.pair}"


def missing_pair(policy: SpeculationPolicy, known: Iterable[str]) -> Problem:
    """The problem that a policy's pair does not exist, with the first names of the pairs in the policy's namespace."""
    prefix = "" if policy.metadata.namespace is None else f"{policy.metadata.namespace}/"
    here = sorted(key.removeprefix(prefix) for key in known if key.startswith(prefix) and "/" not in key[len(prefix) :])
    there_is = ", ".join([*here[:_MAX_NAMES], *(["..."] if len(here) > _MAX_NAMES else [])]) or "none"
    return Problem("spec.pair", f"no ModelPair is named {show(policy.spec.pair)} (known: {there_is})")


def check_against_pair(policy: SpeculationPolicy, pair: ModelPair) -> Iterator[Problem]:
    """Yields every problem of a policy that depends on its pair."""
    yield from _check_draft_lengths(policy, pair)
    if not has_draft(pair):
        thresholds = [("spec.thresholds", policy.spec.thresholds)]
        for index, rule in enumerate(policy.spec.classes):
            if rule.thresholds is not None:
                thresholds.append((f"spec.classes[{index}].thresholds", rule.thresholds))
        for path, values in thresholds:
            if values.acceptance_floor is not None:
                message = f"has no effect: ModelPair/{pair.metadata.name} has no draft"
                yield Problem(f"{path}.acceptanceFloor", message)


def has_draft(pair: ModelPair) -> bool:
    """Whether any request of the pair can speculate."""
    engine = pair.spec.engine
    if isinstance(engine, ExternalEngine):
        return engine.arms.speculative is not None
    if isinstance(engine, VllmEngine) and pair.spec.draft is None:
        return True  # the servers' own draft, which the manifest need not name
    return pair.spec.draft is not None and pair.spec.draft.kind != "none"


def _repeated(items: Iterable[_Object], key: Callable[[_Object], str], path: str, what: str) -> Iterator[Blamed]:
    seen: set[str] = set()
    for item in items:
        value = key(item)
        if value in seen:
            yield item, Problem(path, f"another {type(item).__name__} {what} {show(value)}")
        seen.add(value)


def _check_adapter_models(pairs: Sequence[ModelPair]) -> Iterator[Blamed]:
    owners = adapter_owners(pairs)
    for pair in pairs:
        if owner := owners.get(pair.spec.model):
            message = f"ModelPair/{owner.metadata.name} serves the model {show(pair.spec.model)} as its adapter"
            yield pair, Problem("spec.model", message)


def adapter_owners(pairs: Iterable[ModelPair]) -> dict[str, ModelPair]:
    """The pairs by the clients' names of their adapters. MODEL:NAME belongs to the pair that serves MODEL."""
    return {adapter_name(pair.spec.model, adapter): pair for pair in pairs for adapter in adapters_of(pair)}


def _check_triton_models(pairs: Iterable[ModelPair]) -> Iterator[Blamed]:
    """Pairs of one local Triton need different models there."""
    owners: dict[str, ModelPair] = {}
    for pair in pairs:
        engine = pair.spec.engine
        if isinstance(engine, ExternalEngine) or engine.endpoints:
            continue
        if isinstance(engine, VllmEngine) and engine.serving != "triton":
            continue
        name = engine.triton_model or pair.metadata.name
        owner = owners.setdefault(name, pair)
        if owner is not pair:
            message = f"ModelPair/{owner.metadata.name} already has the Triton model {show(name)}"
            yield pair, Problem("spec.engine.tritonModel", message)


def _check_draft_lengths(policy: SpeculationPolicy, pair: ModelPair) -> Iterator[Problem]:
    """No draft may be longer than the pair allows."""
    limit = pair.spec.max_draft_tokens
    lengths = [("spec.draftTokens", policy.spec.draft_tokens)]
    lengths += [
        (f"spec.classes[{index}].draftTokens", rule.draft_tokens) for index, rule in enumerate(policy.spec.classes)
    ]
    for path, length in lengths:
        if length is not None and length > limit:
            name = pair.metadata.name
            yield Problem(path, f"must be at most maxDraftTokens of ModelPair/{name} ({limit}), got {length}")
