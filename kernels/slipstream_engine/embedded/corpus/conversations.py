"""Call transcripts and their structured summaries."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .entities import World
from .example import Example, compose, vary
from .reasons import REASONS, Reason

_SYSTEM = (
    "You are [a helpful|an] assistant [for|in] a contact centre.",
    "You [summarise|document] [customer calls|calls] for the [service team|CRM].",
    "You write [short|structured|clear] call summaries.",
    "You are an assistant for call documentation. [Answer only with the summary.|Be precise.|]",
)
_INSTRUCTION = (
    "[Summarise|Summarize|Please summarise|Please summarize] [this|the|the following] "
    "[call|customer call|phone call|conversation|call transcript][.|:| for the CRM.| for our records.]",
    "[Write|Create|Give me|Prepare|I need] a [structured |call |short structured |]summary of "
    "[this|the|the following] [call|conversation|transcript|customer call][.|:| for the case file.]",
    "[Summarise|Summarize] the call with [the usual sections|reason, issue, actions, outcome, next step and "
    "sentiment|our standard sections].",
    "[Summarise|Summarize|Please summarise|Please summarize] [this|the|the following] "
    "[support call|service call|call|customer conversation|phone call][ for the CRM|]: [reason for contact|reason], "
    "[customer issue, |]agent actions, outcome, next step[, sentiment|].",
    "[Summarise|Summarize] [this|the following] [support call|service call|support conversation] [for the CRM|for the "
    "case file|for our records] with [reason for contact|the reason], [issue, |][agent actions|actions], outcome and "
    "next [step|steps].",
    "[Document|Record] [this|the following] [support call|call] [for the CRM|for the file][.|: reason, actions, "
    "outcome, next step.]",
    "[I need|Write|Give me] [notes for the CRM|a CRM entry|the CRM summary] [for|of] [this|the following] "
    "[support call|call|customer call][.|:]",
    "[Turn|Make] [this|the] [transcript|call] into a [call summary|structured summary][.|:]",
    "What [happened|was said] in this call? [Write a structured summary.|Give a structured summary.|Summarise it.]",
    "[Call summary|Structured summary], please[.|:]",
)


@dataclass(frozen=True)
class Outcome:
    """The end of a call: the closing lines, and the fixed wording of the two summary sections about it."""

    spoken: str
    written: str
    next_spoken: str
    next_written: str


OUTCOMES = (
    Outcome("[That is all done now.|So this is solved.|Then everything is settled.]",
            "The issue was resolved during the call and the customer agreed with the solution.",
            "You will get a confirmation by e-mail [today|shortly].",
            "The customer will receive a confirmation by e-mail and no further action is needed."),
    Outcome("I [have to pass|must pass|will pass] this to [a specialist|the specialists].",
            "The issue could not be resolved during the call and was passed to a specialist team.",
            "[A specialist|Somebody] will call you back [within|in] {days} days.",
            "A specialist will call the customer back within {days} working days."),
    Outcome("I [need|still need] [some|a few] documents from you before I can [go on|continue].",
            "The case stays open because documents from the customer are still missing.",
            "Please send [them|the documents] [within|in] {days} days.",
            "The customer will send the missing documents within {days} working days."),
    Outcome("[The money|The amount of {amount}] [is|will be] on its way[ back|] to you: {amount}.",
            "The issue was resolved during the call and an amount of {amount} will be paid to the customer.",
            "It [takes|should take] about {days} days.",
            "The payment will reach the customer within {days} working days."),
    Outcome("[It will be done|This will be taken care of|That happens] on {weekday}.",
            "A solution was agreed with the customer and it will be carried out on {weekday}.",
            "[Please be|Somebody should be] [reachable|at home] on {weekday}.",
            "The team will carry out the agreed work on {weekday} and inform the customer."),
)  # fmt: skip

_MOODS = {
    "calm": "[I have a question.|I hope that you can help me.|Maybe you can help.]",
    "annoyed": "[This is really annoying.|I am not happy about this.|I am quite upset.]",
    "worried": "[I am a bit worried.|That makes me nervous.|I do not know what to do.]",
}
_ENDINGS = {
    "satisfied": "[Great, thank you so much.|Wonderful, that helps a lot.|Perfect, thanks for your help.]",
    "neutral": "[All right.|Okay, fine.|Okay then.]",
    "dissatisfied": ("[I still do not like it.|That is not what I hoped for.|I am disappointed, to be honest.]"),
}
_SENTIMENT = {
    "calm": "The customer was calm at the beginning of the call",
    "annoyed": "The customer was annoyed at the beginning of the call",
    "worried": "The customer was worried at the beginning of the call",
}
_SMALL_TALK = (
    (
        "[One moment, please.|Let me have a look.|I am checking that for you.]",
        "[Sure.|Okay.|Take your time.|Yes.]",
    ),
    ("[Thank you for waiting.|Thanks for your patience.]", "[No problem.|That is fine.|Of course.]"),
    (
        "[Is the e-mail address still the same?|Are your contact details correct?]",
        "[Yes.|Yes, it is.|Correct.]",
    ),
    ("[Can you hear me well?|Are you still there?]", "[Yes, I can hear you.|Yes, I am here.]"),
    ("[When did this start?|Since when?]", "[Last week.|Since {weekday}.|A few days ago.|Yesterday.]"),
)


@dataclass(frozen=True)
class Call:
    """A call with all facts of its summary."""

    reason: Reason
    customer: str
    account: str
    transcript: str
    summary: str


def fill(text: str, slots: dict[str, str]) -> str:
    """Replace each `{slot}`. Unlike `str.format`, other braces stay unchanged."""
    for name, value in slots.items():
        text = text.replace("{" + name + "}", value)
    return text


def make_call(rng: random.Random, world: World) -> Call:
    reason, outcome = rng.choice(REASONS), rng.choice(OUTCOMES)
    mood, ending = rng.choice(list(_MOODS)), rng.choice(list(_ENDINGS))
    customer, account = world.person(), world.account_id()
    slots = {
        "product": world.product(), "order": world.order_id(), "amount": world.amount(),
        "days": str(rng.randint(2, 9)), "weekday": world.weekday(),
    }  # fmt: skip
    actions = sorted(rng.sample(range(len(reason.actions)), k=rng.choice((2, 2, 3))))
    lines = _opening(rng, world, reason, customer, account, mood)
    for index in actions:
        if rng.random() < 0.35:
            question, answer = rng.choice(_SMALL_TALK)
            lines += [f"Agent: {question}", f"Customer: {answer}"]
        lines.append(f"Agent: {reason.actions[index][0]}")
        lines.append("Customer: [Okay.|Good.|I see.|Thank you.|All right.|Fine.]")
    lines += [f"Agent: {outcome.spoken}", "Customer: [Okay.|I understand.|And then?|What happens next?]"]
    lines += [f"Agent: {outcome.next_spoken}", f"Customer: {_ENDINGS[ending]}"]
    if rng.random() < 0.6:
        lines.append("Agent: [Goodbye.|Have a nice day.|Thank you for calling.|Thanks for your call, goodbye.]")
    text = fill(vary(rng, "\n".join(lines)), slots)
    summary = "\n".join((
        f"Reason for contact: {reason.label}",
        f"Customer: {customer}, account {account}",
        f"Customer issue: {reason.issue}",
        "Agent actions:",
        "- Verified the identity of the customer with the account number.",
        *(f"- {reason.actions[index][1]}" for index in actions),
        f"Outcome: {outcome.written}",
        f"Next step: {outcome.next_written}",
        f"Sentiment: {_SENTIMENT[mood]} and {ending} at the end.",
    ))  # fmt: skip
    return Call(reason, customer, account, text, fill(summary, slots))


def _opening(rng: random.Random, world: World, reason: Reason, customer: str, account: str, mood: str) -> list[str]:
    agent = world.given()
    hello = f"[Hello|Good morning|Good afternoon|Hi], [this is {agent}|you are speaking with {agent}|{agent} here]"
    opening = rng.choice(reason.openings)
    return [
        f"Agent: [{hello}|{hello}|Thank you for calling|Welcome to the service team]"
        "[, how can I help you?|, how can I help?|. What can I do for you?|.]",
        f"Customer: [Hello|Hi|Good day], [this is|my name is|I am] {customer}. "
        + rng.choice((f"{opening} {_MOODS[mood]}", f"{_MOODS[mood]} {opening}")),
        "Agent: [I am sorry to hear that. |I understand. |Thank you. |]"
        "[What is your account number?|May I have your account number?|Please tell me your account number.]",
        f"Customer: [It is {account}.|{account}.|The number is {account}.|Yes, {account}.]",
    ]


def make_summary(rng: random.Random, world: World) -> Example:
    call = make_call(rng, world)
    return compose(
        rng, task="summary", instruction=vary(rng, rng.choice(_INSTRUCTION)), answer=call.summary,
        material=vary(rng, "[|Transcript:\n|Call transcript:\n]") + call.transcript,
        system=vary(rng, rng.choice(_SYSTEM)),
        facts={"reason": call.reason.label, "account": call.account, "customer": call.customer},
    )  # fmt: skip
