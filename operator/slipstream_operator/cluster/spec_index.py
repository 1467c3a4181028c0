"""The parsed specs of all pairs and policies, checked against each other: each object is parsed once, and all are
checked again after a change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resolve import Resolution, resolve
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.versions import GoodVersion, good_version, parse_version, version_key
from slipstream_core.settings import NO_GRANTS, Grants

from slipstream_operator.cluster.cache import key_of
from slipstream_operator.cluster.comparison import differing
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.types import KubeObject, NameClaim

_NOTHING = Resolution(pairs={}, policies={}, problems={}, kills={})


class _Entry(NamedTuple):
    """An object's newest version, and its last usable one."""

    version: tuple[Any, ...]
    spec: Any
    parsed: ParsedResource
    good: GoodVersion | None

    @property
    def served(self) -> ParsedResource:
        """The version that gateways use, with the kill switch of the newest."""
        if self.good is None or self.parsed.item is not None:
            return self.parsed
        return msgspec.structs.replace(self.good.parsed, killed=self.parsed.killed)

    @property
    def resources(self) -> tuple[ParsedResource, ...]:
        return (self.parsed,) if self.served is self.parsed else (self.parsed, self.served)


class SpecIndex:
    """The ModelPairs and SpeculationPolicies of the cluster, and the problems between them, which depend on
    `grants`."""

    def __init__(self, grants: Grants = NO_GRANTS) -> None:
        self._grants = grants
        self._entries: dict[ObjectKey, _Entry] = {}
        self._of_pair: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._resolution = _NOTHING
        self._stale = False

    def put(self, raw: KubeObject) -> None:
        """Store a parent. It is parsed only if its generation, its spec or another part of `version_key` has changed;
        most of its status is ignored. The same generation may have another spec after the cluster was restored from a
        backup."""
        key, version = key_of(raw), version_key(raw)
        known = self._entries.get(key)
        if known is not None and known.version == version and known.spec == raw.get("spec"):
            return
        self.remove(key)
        parsed = parse_version(raw)
        good = good_version(raw, parsed, known.good if known is not None else None)
        self._entries[key] = entry = _Entry(version, raw.get("spec"), parsed, good)
        for resource in entry.resources:
            if resource.pair_key is not None:
                self._of_pair[resource.pair_key].add(key)
        self._stale = True

    def remove(self, key: ObjectKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._stale = True
        for pair in {resource.pair_key for resource in entry.resources if resource.pair_key is not None}:
            self._of_pair[pair].discard(key)
            if not self._of_pair[pair]:
                del self._of_pair[pair]

    def parsed(self, key: ObjectKey) -> ParsedResource | None:
        """The newest version."""
        entry = self._entries.get(key)
        return None if entry is None else entry.parsed

    def served(self, key: ObjectKey) -> ParsedResource | None:
        """The version that gateways use: the last valid one, or the newest if no version is valid."""
        entry = self._entries.get(key)
        return None if entry is None else entry.served

    def last_good(self, key: ObjectKey) -> GoodVersion | None:
        """The last known valid version."""
        entry = self._entries.get(key)
        return None if entry is None else entry.good

    def name_claim(self, key: ObjectKey) -> NameClaim:
        """The namespaces that serve and reserve the model name of that pair."""
        served = self.served(key)
        if served is None or not isinstance(served.item, ModelPair):
            return NameClaim()
        model = served.item.spec.model
        owner = self._resolution.owners.get(model)
        return NameClaim(
            served_by=None if owner is None else owner.metadata.namespace, holder=self._resolution.holders.get(model)
        )

    def related(self, pair_key: str | None) -> Iterator[ObjectKey]:
        """The pair with that key, if it exists, and every policy that names it."""
        yield from sorted(self._of_pair.get(pair_key or "", ()))

    def killed_policies(self, pair_key: str) -> list[ObjectKey]:
        """The policies for that pair whose kill switch is on, whether in force or not."""
        return [key for key in self.related(pair_key) if key.kind is not Kind.MODEL_PAIR and self._is_killed(key)]

    def policy_in_force(self, pair_key: str) -> ObjectKey | None:
        """The policy in force for that pair."""
        policy = self.resolution.policies.get(pair_key)
        if policy is None:
            return None
        return ObjectKey(Kind.SPECULATION_POLICY, policy.metadata.namespace or "", policy.metadata.name)

    def policy_at_work(self, pair_key: str) -> ObjectKey | None:
        """The policy under which gateways may speculate with that pair: the one in force. If there is none because the
        pair or its policies are invalid, gateways keep the last good versions, most likely that of the oldest
        policy."""
        if (policy := self.policy_in_force(pair_key)) is not None:
            return policy
        related = list(self.related(pair_key))
        if not any(key.kind is Kind.MODEL_PAIR for key in related):
            return None
        return min((key for key in related if key.kind is not Kind.MODEL_PAIR), key=self._seniority, default=None)

    @property
    def resolution(self) -> Resolution:
        """The result of the last `resolve`."""
        return self._resolution

    def resolve(self) -> set[ObjectKey]:
        """Check again if anything changed. Returns the objects whose own result, or whose partner's result, changed."""
        if not self._stale:
            return set()
        before, after = self._resolution, resolve(self._resources(), self._grants)
        self._resolution, self._stale = after, False
        changed = differing(before.problems, after.problems)
        affected = {key for key in self._entries if str(key) in changed} if changed else set()
        pairs = differing(before.pairs, after.pairs) | differing(before.policies, after.policies)
        for pair_key in pairs | differing(before.kills, after.kills):
            affected.update(self.related(pair_key))
        return affected

    def _resources(self) -> Iterator[ParsedResource]:
        for entry in self._entries.values():
            yield from entry.resources

    def _seniority(self, key: ObjectKey) -> tuple[bool, str, ObjectKey]:
        """Sort key: valid specs before invalid ones, then the oldest first."""
        parsed = self._entries[key].parsed
        return parsed.item is None, parsed.created, key

    def _is_killed(self, key: ObjectKey) -> bool:
        return self._entries[key].parsed.killed
