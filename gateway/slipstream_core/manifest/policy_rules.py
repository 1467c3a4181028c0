"""Rules within one policy that its types cannot express, by the type that they apply to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from slipstream_core.manifest.capture import Capture, Redaction
from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.rollout import MAX_SECONDS, MAX_STEPS, Rollback, Rollout, Thresholds
from slipstream_core.manifest.rule import Rule, Term, defaults_of, field, given, literal, no_effect, rule, unique
from slipstream_core.manifest.speculation_policy import ClassRule, SpeculationPolicySpec


def _check_steps(rollout: Rollout, path: str) -> Iterator[Problem]:
    shares = [step.share for step in rollout.steps]
    for index, (before, share) in enumerate(itertools.pairwise(shares), start=1):
        if share <= before:
            message = f"must be above the step before ({before:g}), got {share:g}"
            yield Problem(f"{path}.steps[{index}].share", message)


def _check_redaction(redaction: Redaction, path: str) -> Iterator[Problem]:
    if message := _unusable(redaction.pattern):
        yield Problem(f"{path}.pattern", f"{message}, got {show(redaction.pattern)}")


def _unusable(pattern: str) -> str | None:
    try:
        found = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        return f"must be a regular expression in Python's syntax ({exc})"
    return "must not match an empty text" if found.search("") else None


def _or_policys(name: str, neutral: float) -> Term:
    """A threshold of the class `item`, else the policy's, else one that is never broken."""
    return field(f"item.thresholds.{name}", field(f"thresholds.{name}", neutral))


def _parity(path: str, threshold: str) -> Rule:
    message = "needs spec.parityShare above 0, got {}: no answer is replayed"
    return rule(path, ~given(threshold) | ~_PARITY_SHARE.at_most(literal(0.0)), message, _PARITY_SHARE)


_TTFT, _P95 = field("ttftP95Seconds"), field("p95Seconds")
_CLASS_TTFT, _CLASS_P95 = _or_policys("ttftP95Seconds", 0.0), _or_policys("p95Seconds", float(MAX_SECONDS))
_PARITY_SHARE, _HOLD_BACK_SHARE = (
    field(name, defaults_of(SpeculationPolicySpec)[name]) for name in ("parityShare", "holdBackShare")
)
_COOL_DOWN, _MAX_COOL_DOWN = (
    field(name, defaults_of(Rollback)[name]) for name in ("coolDownSeconds", "maxCoolDownSeconds")
)

POLICY_RULES: Mapping[type, tuple[Rule, ...]] = {
    SpeculationPolicySpec: (
        unique("classes", "name", "another rule already has the class {}"),
        rule(
            "classes[].thresholds.ttftP95Seconds",
            given("item.thresholds.ttftP95Seconds").equals(given("item.thresholds.p95Seconds"))
            | _CLASS_TTFT.at_most(_CLASS_P95),
            "must be at most p95Seconds ({}), got {}",
            _CLASS_P95,
            _CLASS_TTFT,
        ),
        _parity("thresholds.parityLoss", "thresholds.parityLoss"),
        _parity("classes[].thresholds.parityLoss", "item.thresholds.parityLoss"),
        rule(
            "maxHoldBackShare",
            ~given("maxHoldBackShare") | _HOLD_BACK_SHARE.at_most(field("maxHoldBackShare")),
            "must be at least holdBackShare ({}), got {}",
            _HOLD_BACK_SHARE,
            field("maxHoldBackShare"),
        ),
    ),
    ClassRule: (no_effect("thresholds", field("mode", "auto").is_in("plain"), "with mode plain"),),
    Thresholds: (
        rule(
            "ttftP95Seconds",
            ~given("ttftP95Seconds") | ~given("p95Seconds") | _TTFT.at_most(_P95),
            "must be at most p95Seconds ({}), got {}",
            _P95,
            _TTFT,
        ),
    ),
    Rollout: (
        # CEL cannot generate a range of indices, so all possible ones are listed.
        Rule(
            _check_steps,
            f"!has(self.steps) || {list(range(MAX_STEPS - 1))}.all(i, i + 1 >= size(self.steps) || "
            "self.steps[i].share < self.steps[i + 1].share)",
            "steps must have rising shares",
        ),
    ),
    Rollback: (
        rule(
            "coolDownSeconds",
            _COOL_DOWN.at_most(_MAX_COOL_DOWN),
            "must be at most maxCoolDownSeconds ({}), got {}",
            _MAX_COOL_DOWN,
            _COOL_DOWN,
        ),
    ),
    Capture: tuple(
        unique(listed, "name", "another one has the name {}", cel=False) for listed in ("classes", "patterns")
    ),
    Redaction: (Rule(_check_redaction),),
}
