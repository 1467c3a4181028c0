"""Conflicts between the resources of a cluster, which nothing prevents there, and a result for each resource.

A bad object never affects the others. Of two objects with the same claim, the older one has it, and the younger one
gets a problem. Age is by creation, whatever was edited since, as for Kubernetes' Ingresses and Gateways. Nothing else
follows from the objects alone, so that every gateway gets the same result, also after a restart. Hence a pair that
changes its `spec.model` to that of a younger pair takes the name over. The names of adapters, MODEL:NAME, belong to the
pair that serves MODEL, whatever its age.

The name of a deleted pair stays reserved for its namespace for a while. Pairs of other namespaces that wait for it name
the holder in their status, and no such pair gets the name until the operator removes that entry.

A kill needs no ownership: the switch of a pair that claims a model also kills the pair that serves that model. Grants
are checked first: a pair that may not use a name or a key claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.grants import grant_problems, may_serve
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.rules import adapter_owners, check_against_pair, missing_pair, pair_key_of
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.status import NameHolder
from slipstream_core.settings import NO_GRANTS, Grants


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that are in effect.

    `pairs` and `policies` are the effective ones, both by the pair's key. `problems` has the problems of all others by
    `ParsedResource.key`. `kills` holds the reasons of kills by the pair's key: see `kills_of`. By model name, `owners`
    are the pairs that serve it, and `holders` the namespaces that it is reserved for.
    """

    pairs: Mapping[str, ModelPair]
    policies: Mapping[str, SpeculationPolicy]
    problems: Mapping[str, tuple[Problem, ...]]
    kills: Mapping[str, str]
    owners: Mapping[str, ModelPair] = {}
    holders: Mapping[str, NameHolder] = {}


def resolve(resources: Iterable[ParsedResource], grants: Grants = NO_GRANTS) -> Resolution:
    """The result for `resources`, in any order. `grants` are the permissions of their namespaces."""
    oldest_first = sorted(resources, key=lambda resource: (resource.created, resource.name, resource.namespace or ""))
    problems = {resource.key: resource.problems for resource in oldest_first if resource.item is None}
    holders = _holders(oldest_first)
    owners = _owners(oldest_first, grants, holders, problems)
    pairs = {pair.metadata.key: pair for pair in owners.values()}
    policies = _resolve_policies(oldest_first, pairs, problems)
    return Resolution(
        pairs=pairs,
        policies=policies,
        problems=problems,
        kills=kills_of(oldest_first, pairs.values(), grants),
        owners=owners,
        holders=holders,
    )


def kills_of(
    resources: Iterable[ParsedResource], serving: Iterable[ModelPair], grants: Grants = NO_GRANTS
) -> dict[str, str]:
    """The reasons why pairs are killed, by their keys. A pair is killed by its own switch or by that of any of its
    policies, even if those are not in effect or cannot be parsed; a pair's own switch is reported before a policy's. A
    pair in `serving` is also killed by the switch of any other pair that claims its model, unless `grants` forbid that
    pair the name."""
    kills: dict[str, str] = {}
    claims: dict[str, ParsedResource] = {}
    for resource in sorted(resources, key=lambda resource: (resource.kind, resource.name, resource.namespace or "")):
        if resource.killed and (key := resource.pair_key) is not None:
            kills.setdefault(key, f"the kill switch of {resource.kind}/{resource.name} is on")
            if resource.model is not None and may_serve(resource.model, resource.namespace, grants):
                claims.setdefault(resource.model, resource)
    for pair in serving:
        claim = claims.get(pair.spec.model)
        if claim is not None and pair.metadata.key not in kills:
            name = claim.name if claim.namespace == pair.metadata.namespace else claim.pair_key
            why = f"the kill switch of ModelPair/{name}, which also claims the model {show(pair.spec.model)}, is on"
            kills[pair.metadata.key] = why
    return kills


def _owners(
    oldest_first: list[ParsedResource],
    grants: Grants,
    holders: Mapping[str, NameHolder],
    problems: dict[str, tuple[Problem, ...]],
) -> dict[str, ModelPair]:
    owners: dict[str, ModelPair] = {}
    losers: dict[str, ModelPair] = {}
    for resource in oldest_first:
        pair = resource.item
        if not isinstance(pair, ModelPair):
            continue
        if found := tuple(grant_problems(pair, grants)):
            problems[resource.key] = found
            continue
        holder = holders.get(pair.spec.model)
        is_kept = holder is not None and holder.namespace != pair.metadata.namespace
        if is_kept or owners.setdefault(pair.spec.model, pair) is not pair:
            losers[resource.key] = pair
    for key, pair in losers.items():
        why = name_taken(pair, owners.get(pair.spec.model), holders.get(pair.spec.model))
        problems[key] = (Problem("spec.model", why),)
    adapters = adapter_owners(owners.values())
    for resource in oldest_first:
        pair = resource.item
        if not isinstance(pair, ModelPair) or owners.get(pair.spec.model) is not pair:
            continue
        if owner := adapters.get(pair.spec.model):
            message = f"ModelPair {_seen_from(pair, owner)} serves the model {show(pair.spec.model)} as its adapter"
            problems[resource.key] = (Problem("spec.model", message),)
            del owners[pair.spec.model]
    return owners


def _holders(oldest_first: list[ParsedResource]) -> dict[str, NameHolder]:
    """If several pairs report a holder of a name, the oldest pair's report counts."""
    holders: dict[str, NameHolder] = {}
    for resource in oldest_first:
        if resource.name_holder is not None:
            holders.setdefault(resource.name_holder.model, resource.name_holder)
    return holders


def name_taken(pair: ModelPair, owner: ModelPair | None, holder: NameHolder | None) -> str:
    """The reason why `pair` does not get its name: `owner` serves it, or it is reserved for the namespace of
    `holder`."""
    model = show(pair.spec.model)
    if owner is not None:
        return f"ModelPair {_seen_from(pair, owner)} already serves the model {model}"
    namespace = holder.namespace if holder is not None else None
    until = f" until {holder.until}" if holder is not None and holder.until is not None else ""
    return f"the model {model} is reserved for namespace {namespace}{until}, whose pair of that name was deleted"


def _resolve_policies(
    oldest_first: list[ParsedResource], pairs: Mapping[str, ModelPair], problems: dict[str, tuple[Problem, ...]]
) -> dict[str, SpeculationPolicy]:
    policies: dict[str, SpeculationPolicy] = {}
    there = {resource.pair_key for resource in oldest_first if resource.kind == "ModelPair"}
    for resource in oldest_first:
        policy = resource.item
        if not isinstance(policy, SpeculationPolicy):
            continue
        key = pair_key_of(policy)
        if found := _problems_of(policy, pairs.get(key), policies.get(key), exists=key in there):
            problems[resource.key] = found
        elif key not in pairs:
            problems[resource.key] = (missing_pair(policy, pairs),)
        else:
            policies[key] = policy
    return policies


def _problems_of(
    policy: SpeculationPolicy, pair: ModelPair | None, rival: SpeculationPolicy | None, *, exists: bool
) -> tuple[Problem, ...]:
    """The problems between a policy and its pair, if there is such a pair."""
    if pair is None:
        return (Problem("spec.pair", f"ModelPair {policy.spec.pair} is refused, see its status"),) if exists else ()
    if rival is not None:
        message = f"ModelPair {pair.metadata.name} already has SpeculationPolicy {rival.metadata.name}"
        return (Problem("spec.pair", message),)
    return tuple(check_against_pair(policy, pair))


def _seen_from(pair: ModelPair, other: ModelPair) -> str:
    """The name of `other`, with its namespace if that differs."""
    return other.metadata.name if other.metadata.namespace == pair.metadata.namespace else other.metadata.key
