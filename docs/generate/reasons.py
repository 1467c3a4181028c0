"""The reasons of decisions, with a sentence each, and how a request is decided.

A reason without a sentence, or without a step, stops the generation.
"""

from __future__ import annotations

from collections.abc import Iterator

from slipstream_core.types import Reason

from docs.generate.markdown import listing, page

_SENTENCES = {
    Reason.KILL_SWITCH: ("plain", "A kill switch is on: that of the pair, of its policy, or the console's."),
    Reason.NO_POLICY: ("plain", "No SpeculationPolicy names this pair, so nothing allows speculation."),
    Reason.POLICY_DISABLED: ("plain", "The policy is switched off (`enabled: false`)."),
    Reason.NO_DRAFT: ("plain", "The pair has no draft, or its servers cannot draft."),
    Reason.PAIR_NOT_READY: ("plain", "In a cluster: the operator has not reported the pair ready."),
    Reason.ROLLED_BACK: ("plain", "In a cluster: speculation harmed this class and was rolled back."),
    Reason.STATISTICS_STALE: ("plain", "In a cluster: the statistics of this class are too old."),
    Reason.SPECULATIVE_UNAVAILABLE: ("plain", "No server of the speculative arm was available for the request."),
    Reason.ENGINE_CANNOT: ("plain", "The servers accept no draft length, such as vLLM without Slipstream's plugin."),
    Reason.ENGINE_NOT_LOSSLESS: ("plain", "A conformance check found that speculation changes the servers' answers."),
    Reason.ENGINE_UNVERIFIED: ("plain", "The servers are new, or were unreachable, and have not passed a check yet."),
    Reason.UNSUPPORTED_PARAMETER: ("either", "Only one arm can honour a parameter of the request exactly."),
    Reason.CLIENT_ASKED: ("either", "The client chose the arm with `x-slipstream-mode`, and the policy allows that."),
    Reason.CLASS_DISABLED: ("plain", "A rule of the policy, or its status, turns speculation off for this class."),
    Reason.CLASS_ENABLED: (
        "speculative",
        "A rule of the policy (`mode: speculative`) makes this class speculate always.",
    ),
    Reason.UNKNOWN_CLASS: ("plain", "The classifier's confidence in the class is below the policy's floor."),
    Reason.SHORT_OUTPUT: ("plain", "The expected answer is shorter than the policy's minimum."),
    Reason.RARE_TOKENS: ("plain", "The expected answer has many rare tokens, which drafts rarely predict."),
    Reason.HOT_SAMPLING: ("plain", "The temperature is above the policy's limit: drafts are rejected too often."),
    Reason.LONG_CONTEXT: ("plain", "The prompt is longer than the policy's limit."),
    Reason.BREAK_EVEN: (
        "plain",
        "The predicted saving of the best draft length is not above the margin; with `cautious`, its lower bound.",
    ),
    Reason.COST: ("plain", "Speculation would be faster, but would cost more than the policy allows."),
    Reason.PRESSURE: ("plain", "The servers are under pressure: speculation stops before requests have to wait."),
    Reason.ROLLOUT: ("control", "The request would speculate, but is outside the share of this rollout step."),
    Reason.HOLD_BACK: ("control", "The request would speculate, but is held back as the control."),
    Reason.EXPLORATION: (
        "speculative",
        "Too little is known about the saving, or from other keys only: a small share speculates to learn.",
    ),
    Reason.SPECULATION_PAYS: (
        "speculative",
        "The predicted saving is above the margin, or the policy decides by rules and none forbids speculation.",
    ),
    Reason.SPECULATION_MAY_PAY: (
        "speculative",
        "The predicted saving is not above the margin, but its upper bound is, and the servers end drafts that do not "
        "pay.",
    ),
}


_STEPS = (
    (
        "Is speculation switched on, and is everything up that it needs?",
        (
            Reason.KILL_SWITCH,
            Reason.NO_POLICY,
            Reason.POLICY_DISABLED,
            Reason.NO_DRAFT,
            Reason.PAIR_NOT_READY,
            Reason.ROLLED_BACK,
            Reason.STATISTICS_STALE,
            Reason.SPECULATIVE_UNAVAILABLE,
            Reason.ENGINE_CANNOT,
            Reason.ENGINE_UNVERIFIED,
            Reason.ENGINE_NOT_LOSSLESS,
        ),
    ),
    (
        "Can the speculative arm do exactly what is asked for (`n`, `logprobs`, `min_p`, …)?",
        (Reason.UNSUPPORTED_PARAMETER,),
    ),
    ("Did the client choose an arm, and does the policy allow that?", (Reason.CLIENT_ASKED,)),
    (
        "What do the policy's class rules and thresholds say? Is the class known?",
        (
            Reason.CLASS_DISABLED,
            Reason.UNKNOWN_CLASS,
            Reason.SHORT_OUTPUT,
            Reason.RARE_TOKENS,
            Reason.HOT_SAMPLING,
            Reason.LONG_CONTEXT,
        ),
    ),
    (
        "Does the predicted saving exceed the margin, at an acceptable cost? Are the servers under pressure?",
        (Reason.BREAK_EVEN, Reason.COST, Reason.PRESSURE),
    ),
    ("In a cluster: is the request outside the share that this rollout step lets speculate?", (Reason.ROLLOUT,)),
    ("Is the request held back for comparison?", (Reason.HOLD_BACK,)),
    (
        "No rule applies: the request speculates.",
        (Reason.SPECULATION_PAYS, Reason.SPECULATION_MAY_PAY, Reason.CLASS_ENABLED, Reason.EXPLORATION),
    ),
)

_SAVING = """\
Step 5 is arithmetic on what this deployment has measured, for each draft length γ that the pair allows:

```text
saving = L · (TPOT_plain(load) − step(γ, load) / E(β, γ))
```

L is the expected output length, β the expected acceptance, E the tokens that one step yields, and step(γ, load) the
time of one step. The draft length with the largest saving is used. If the servers choose the draft
tokens of each step themselves, a greedy request gets the longest permitted draft length as a maximum instead,
and a saving that is merely possible counts as well, except for an answer of at most 40 tokens
whose draft model has to read the prompt first: the reason is then
`speculation_may_pay`.

Before an answer of at least eight steps has been timed, only ratios are known: the saving is a share of the plain
answer's time, `saving_s` is null, and the header `x-slipstream-saving-ms` is missing.

[When speculation pays](../when-it-pays.md#which-requests-an-estimate-uses) has the origin of the estimates, the
[manifest](resources.md) the policy's `decision`, `margin` and shares."""

_LOSSLESS = """\
Speculation never changes an answer. With Slipstream's engine, and with vLLM under acceptance by equality and a seed,
the answer has [the tokens of plain decoding](../decisions/seed-equality.md), greedy or sampled, up to rounding.
Elsewhere a sampled answer has the target's own distribution."""


def reasons() -> str:
    return page(
        "Reasons",
        "Every decision carries one of these codes: in the header `x-slipstream-reason`, on the span, in "
        "`slipstream_requests_total{reason=…}`, in the audit log and in `/v1/route`, which adds a sentence with the "
        "numbers. A code never changes its meaning.",
        "A request is decided in eight steps. The first rule that applies decides. Brackets have the arm.",
        *_steps(),
        "## The predicted saving",
        _SAVING,
        "## Losslessness",
        _LOSSLESS,
    )


def _steps() -> Iterator[str]:
    listed = [reason for _, found in _STEPS for reason in found]
    assert sorted(listed) == sorted(Reason), "each reason belongs to one step"
    for number, (question, found) in enumerate(_STEPS, 1):
        yield f"**{number}. {question}**"
        yield listing((f"`{reason}` ({_SENTENCES[reason][0]})", _SENTENCES[reason][1]) for reason in found)
