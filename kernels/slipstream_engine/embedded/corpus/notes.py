"""Free prose: internal notes with varying wording, which a draft model cannot predict."""

from __future__ import annotations

import random

from .conversations import fill, make_call
from .entities import World
from .example import Example, compose, vary
from .reasons import Reason

_SYSTEM = (
    "You are [a helpful|an] assistant [for|in] a contact centre.",
    "You write [internal notes|notes for colleagues].",
    "Write [naturally|in plain words], as a colleague would.",
)
_INSTRUCTION = (
    "[Write|Draft] [a short|an informal|a brief] [note|hand-over note|internal note] [for|to] [a "
    "colleague|the next shift|"
    "the team] about [this|the] [call|case][.|:]",
    "[Tell|Brief] [my colleague|the next agent|the late shift] in [your own words|plain words] what happened[.|:]",
    "[Note for the team|Hand-over note|Short internal note], please[.|:]",
)
_STARTS = (
    "[Just spoke to|Had a call with|Quick note on|I talked to] {name} ([account {account}|{account}]) "
    "[today|this morning|"
    "a moment ago|before lunch].",
    "{name}, account {account}, [rang us|called in|got in touch|was on the line] [today|earlier|about an hour ago].",
    "[Heads-up about|For your information:|Please keep an eye on] {name} [with|at] account {account}.",
)
_TOPICS = (
    "[It was about|The topic was|This one is about|The whole thing concerns] {topic}[, nothing too unusual|, again|].",
    "[The issue is|In short, it is|As you can guess, it was] {topic}[ and the story is rather long|, so far so good|].",
    "[We dealt with|We went through|We looked at] {topic}[ together| step by step|].",
)
_MIDDLES = (
    "[I did what I could|I took the usual steps|I went through the checklist] and [noted everything in "
    "the file|"
    "left the details in the case|put it all in the system].",
    "[There was some back and forth|It took a while|It went quickly], but [we got there|the main points "
    "are clear|"
    "I think that we are on the right track].",
    "[So far I have|By now I have] [checked the account|looked at the history|read the older notes] and "
    "[nothing else "
    "stands out|it all fits together|I see no other open points].",
    "[Please do not|No need to] [start from scratch|ask for the details again|repeat the checks], [the "
    "file is complete|"
    "it is all there|I have done that].",
)
_ENDS = (
    "[Would you mind|Could you|Please] [checking|check] [back tomorrow|the status later|in with them soon]?",
    "[Thanks for taking over|Cheers|Thank you], and [call me|ping me|let me know] [if anything comes "
    "up|if it gets stuck].",
    "[I would say|My feeling is that|I guess] [we are fine for now|this will come up again|they will call again soon].",
)


def make_notes(rng: random.Random, world: World) -> Example:
    call = make_call(rng, world)
    slots = {"name": call.customer, "account": call.account, "topic": _topic(call.reason)}
    parts = [
        rng.choice(_STARTS),
        rng.choice(_TOPICS),
        *rng.sample(_MIDDLES, k=rng.choice((1, 2, 2, 3))),
        rng.choice(_ENDS),
    ]
    return compose(
        rng, task="notes", instruction=vary(rng, rng.choice(_INSTRUCTION)), material=call.transcript,
        answer=fill(vary(rng, " ".join(parts)), slots), system=vary(rng, rng.choice(_SYSTEM)),
        facts={"account": call.account, "customer": call.customer, "topic": slots["topic"]},
    )  # fmt: skip


def _topic(reason: Reason) -> str:
    label = reason.label[0].lower() + reason.label[1:]
    return f"{'an' if label[0] in 'aeiou' else 'a'} {label}"
