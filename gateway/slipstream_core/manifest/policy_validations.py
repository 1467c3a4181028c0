"""Rules of a SpeculationPolicy that a schema cannot express, by the type that they apply to; see `validations`."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_core.manifest.cel_rule import Rule, default_of, or_default
from slipstream_core.manifest.objects import ClassRule, SpeculationPolicySpec
from slipstream_core.manifest.rollout import MAX_SECONDS, MAX_STEPS, Rollback, Rollout, Thresholds

_THRESHOLDS = (
    Rule(
        "!has(self.ttftP95Seconds) || !has(self.p95Seconds) || self.ttftP95Seconds <= self.p95Seconds",
        "ttftP95Seconds must be at most p95Seconds",
    ),
)


def _merged(name: str, neutral: str) -> str:
    """A threshold of the class `rule`, else the policy's, else one that is never broken."""
    return or_default(f"rule.thresholds.{name}", or_default(f"self.thresholds.{name}", neutral))


_HOLD_BACK_SHARE = or_default("self.holdBackShare", str(default_of(SpeculationPolicySpec, "holdBackShare")))
_POLICY = (
    Rule(
        "!has(self.classes) || self.classes.all(rule, self.classes.exists_one(other, other.name == rule.name))",
        "classes must have one rule for each name",
    ),
    Rule(
        "!has(self.classes) || !has(self.thresholds) || self.classes.all(rule, !has(rule.thresholds)"
        f" || {_merged('ttftP95Seconds', '0.0')} <= {_merged('p95Seconds', f'{MAX_SECONDS:.1f}')})",
        "classes must have thresholds that fit the policy's: ttftP95Seconds must be at most p95Seconds,"
        " where a class leaves out one of them too",
    ),
    Rule(
        "!has(self.parityShare) || self.parityShare > 0.0 || !(has(self.thresholds) && "
        "has(self.thresholds.parityLoss)) && !(has(self.classes) && self.classes.exists(rule, has(rule.thresholds) && "
        "has(rule.thresholds.parityLoss)))",
        "parityLoss needs parityShare above 0: no answer is replayed",
    ),
    Rule(
        f"!has(self.maxHoldBackShare) || {_HOLD_BACK_SHARE} <= self.maxHoldBackShare",
        "maxHoldBackShare must be at least holdBackShare",
    ),
)

_CLASS = (
    Rule(
        "!has(self.thresholds) || !has(self.mode) || self.mode != 'plain'",
        "thresholds has no effect with mode plain, leave it out",
    ),
)

# CEL cannot generate a range of indices, so all possible ones are listed.
_ROLLOUT = (
    Rule(
        f"!has(self.steps) || {list(range(MAX_STEPS - 1))}.all(i, i + 1 >= size(self.steps) || self.steps[i].share < "
        "self.steps[i + 1].share)",
        "steps must have rising shares",
    ),
)

_ROLLBACK = (
    Rule(
        f"{or_default('self.coolDownSeconds', str(default_of(Rollback, 'coolDownSeconds')))}"
        f" <= {or_default('self.maxCoolDownSeconds', str(default_of(Rollback, 'maxCoolDownSeconds')))}",
        "coolDownSeconds must be at most maxCoolDownSeconds",
    ),
)

POLICY_RULES: Mapping[type, tuple[Rule, ...]] = {
    SpeculationPolicySpec: _POLICY,
    Thresholds: _THRESHOLDS,
    ClassRule: _CLASS,
    Rollout: _ROLLOUT,
    Rollback: _ROLLBACK,
}
