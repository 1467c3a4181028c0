"""The input of a policy's reconcile, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resources import ParsedResource
from slipstream_core.manifest.speculation_policy import SpeculationPolicy, SpeculationPolicySpec
from slipstream_core.manifest.status import GatewaysStatus, SpeculationPolicyStatus
from slipstream_core.manifest.versions import GoodVersion

from slipstream_operator.rollout.analysis.facts import ClassFacts, ClassMemory


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a SpeculationPolicy when it is reconciled `now`, which has a time zone.

    `newest` is its newest version, of `generation`. `good` is its last usable version, None without one. `prior` is its
    last status, empty if there is none that can be read, and `sealed` has the states of the classes in its checkpoint.
    `problems` are the problems of the newest version, alone or in combination with other objects, `ignored` the fields
    that this version of the operator does not know. `pair` is None if it does not exist or is refused. `pair_at_zero`:
    it has no servers, as its spec asks. `pair_killed`: a kill switch other than this policy's is on. `servers_current`
    False: some of the pair's servers have another spec than the pair. `classes` has the facts of each class from the
    policy's ledger. `connected`: they include all outcomes that gateways have stored; None if the policy has no ledger,
    because it is not in force. `gateways` counts the gateways that apply the spec.
    """

    newest: ParsedResource
    generation: int
    now: datetime
    good: GoodVersion | None = None
    prior: SpeculationPolicyStatus = SpeculationPolicyStatus()
    sealed: Mapping[str, ClassMemory] = {}
    problems: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()
    pair: ModelPair | None = None
    pair_ready: bool = False
    pair_at_zero: bool = False
    pair_killed: bool = False
    servers_current: bool = True
    classes: Mapping[str, ClassFacts] = {}
    connected: bool | None = None
    gateways: GatewaysStatus = GatewaysStatus()

    @property
    def policy(self) -> SpeculationPolicy | None:
        """The newest version; None if its spec is invalid."""
        return self.newest.item if isinstance(self.newest.item, SpeculationPolicy) else None

    @property
    def spec(self) -> SpeculationPolicySpec:
        """The spec that counts. While the newest is invalid, no class is promoted."""
        item = self.good.parsed.item if self.good is not None else None
        return item.spec if isinstance(item, SpeculationPolicy) else SpeculationPolicySpec(pair="unknown")

    @property
    def killed(self) -> str | None:
        """The kill switch that is on; None where none is."""
        if self.newest.killed:
            return "the policy's own kill switch is on"
        return "the kill switch of its pair, or of another policy for it, is on" if self.pair_killed else None
