"""The reasons of decisions, with a sentence each. A reason that has none stops the generation."""

from __future__ import annotations

from slipstream_core.types import Reason

from docs.generate.markdown import page, table

_SENTENCES = {
    Reason.KILL_SWITCH: ("plain", "A kill switch is on: that of the pair, of its policy, or the console's."),
    Reason.NO_POLICY: ("plain", "No SpeculationPolicy is for this pair, so nothing allows speculation."),
    Reason.POLICY_DISABLED: ("plain", "The policy is switched off (`enabled: false`)."),
    Reason.NO_DRAFT: ("plain", "The pair has no draft, or its server takes none."),
    Reason.PAIR_NOT_READY: ("plain", "In a cluster: the operator has not found the pair ready."),
    Reason.ROLLED_BACK: ("plain", "In a cluster: speculation did this class harm, and was taken back."),
    Reason.STATISTICS_STALE: ("plain", "In a cluster: what is known of this class is too old to go by."),
    Reason.SPECULATIVE_UNAVAILABLE: ("plain", "No server of the speculative arm could take the request."),
    Reason.ENGINE_CANNOT: ("plain", "The servers cannot take a draft length: vLLM without Slipstream's plugin, say."),
    Reason.ENGINE_NOT_LOSSLESS: ("plain", "A check of the servers found that speculation changes their answers."),
    Reason.ENGINE_UNVERIFIED: ("plain", "The servers have not been checked yet: they are new, or were lost."),
    Reason.UNSUPPORTED_PARAMETER: ("either", "Only one arm can honour a parameter of the request exactly."),
    Reason.CLIENT_ASKED: ("either", "The client asked for it with `x-slipstream-mode`, and the policy lets clients."),
    Reason.CLASS_DISABLED: ("plain", "The policy, or its status, says that this class is decoded plainly."),
    Reason.CLASS_ENABLED: ("speculative", "The policy says that this class always speculates."),
    Reason.UNKNOWN_CLASS: ("plain", "The classifier is not sure enough of the class to go by it."),
    Reason.SHORT_OUTPUT: ("plain", "The answer is expected to be shorter than the policy's least length."),
    Reason.RARE_TOKENS: ("plain", "The answer is expected to be full of rare tokens, which drafts guess badly."),
    Reason.HOT_SAMPLING: ("plain", "The temperature is above the policy's limit: drafts are rejected too often."),
    Reason.LONG_CONTEXT: ("plain", "The prompt is longer than the policy's limit."),
    Reason.BREAK_EVEN: ("plain", "The predicted saving of the best draft length does not clear the margin."),
    Reason.COST: ("plain", "It would be faster, and cost more than the policy allows."),
    Reason.PRESSURE: ("plain", "The servers are under pressure: speculation is the first to go, before anybody waits."),
    Reason.ROLLOUT: ("control", "It would speculate, and is beyond the share that this step of the rollout allows."),
    Reason.HOLD_BACK: ("control", "It would speculate, and is held back so that there is something to compare with."),
    Reason.EXPLORATION: ("speculative", "Too little is known: a small share speculates to learn."),
    Reason.SPECULATION_PAYS: ("speculative", "The predicted saving clears the margin."),
}


def reasons() -> str:
    rows = [(f"`{reason}`", *_SENTENCES[reason]) for reason in Reason]
    return page(
        "Reasons",
        "Every decision carries one of these codes: in the header `x-slipstream-reason`, on the span, in "
        "`slipstream_requests_total{reason=…}`, in the audit log and in `/v1/route`, where a sentence with the numbers "
        "stands beside it. Codes never change their meaning. The first rule that applies wins.",
        table(("Reason", "Arm", "What it says"), rows),
    )
