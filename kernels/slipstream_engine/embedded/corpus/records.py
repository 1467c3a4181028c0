"""Answers made of facts: one-line statuses and extraction lists."""

from __future__ import annotations

import random

from .conversations import fill
from .entities import World
from .example import Example, compose, vary

_SYSTEM = (
    "You are an assistant [for|in] a [contact centre|customer service team].",
    "You [answer|help] [briefly|precisely|in few words].",
    "You work with the [order|customer] [data|records] of an online shop.",
)
# state -> the one-line answer; {date} and {amount} come from the record
_STATES = {
    "out for delivery": "Order {order} is out for delivery, expected on {weekday}.",
    "in transit": "Order {order} is in transit and should arrive on {weekday}.",
    "delivered": "Order {order} was delivered on {weekday}.",
    "waiting for payment": "Order {order} is waiting for a payment of {amount}.",
    "being packed": "Order {order} is being packed and leaves the warehouse on {weekday}.",
    "cancelled": "Order {order} was cancelled and {amount} will be refunded.",
    "held at customs": "Order {order} is held at customs until {weekday}.",
    "ready for pick-up": "Order {order} is ready for pick-up in {city} until {weekday}.",
}
_QUESTIONS = (
    "[What is|Tell me|Give me] the [status|current status|state] of order {order}[?|.| in one line.| in one sentence.]",
    "[Where is|What about|What happened to] [order|my order] {order}?",
    "[One-line status|Short status|Status] [for|of] order {order}[, please.|.|?]",
    "[Has order {order} arrived?|When will order {order} arrive?] [Answer in one line.|One sentence, please.|]",
)


def make_status(rng: random.Random, world: World) -> Example:
    rows = [_record(rng, world) for _ in range(rng.choice((1, 1, 2, 3)))]
    wanted = rng.choice(rows)
    lines = [
        fill("Order {order}: {product}, {amount}, status: {state}, date: {weekday}, city: {city}", row) for row in rows
    ]
    answer = fill(_STATES[wanted["state"]], wanted)
    return compose(
        rng, task="status", instruction=fill(vary(rng, rng.choice(_QUESTIONS)), wanted).strip(),
        material=vary(rng, "[|Orders:\n|Records:\n]") + "\n".join(lines), answer=answer,
        system=vary(rng, rng.choice(_SYSTEM)), facts={"order": wanted["order"], "line": answer},
    )  # fmt: skip


def _record(rng: random.Random, world: World) -> dict[str, str]:
    return {
        "order": world.order_id(), "product": world.product(), "amount": world.amount(),
        "state": rng.choice(list(_STATES)), "weekday": world.weekday(), "city": world.city(),
    }  # fmt: skip


_EXTRACT = (
    "[Extract|List|Pull out|Find] [all|the] [contracts|contract data|contract numbers, names and amounts] "
    "[from|in] [this|the] [letter|text|message|e-mail][.|:]",
    "[Which contracts are mentioned?|What contracts does the text mention?] [List number, name, amount "
    "and date.|List them.]",
    "[Make|Create] a list [of|with] [all contracts|the contract numbers, names, amounts and dates].",
)
_SENTENCES = (
    "[Contract|Agreement|Policy] {code} [of|belongs to|was signed by] {name}, [the amount is|with an "
    "amount of] {amount}, "
    "[due on|payable by|until] {date}.",
    "{name} [owes|has to pay|pays] {amount} for [contract|agreement] {code} [by|on|due] {date}.",
    "[For|Under] [contract|number] {code}, {name} [agreed to pay|was billed] {amount} [on|for] {date}.",
    "On {date}, {amount} [is due|will be charged] for {code}, [held by|in the name of] {name}.",
)
_LINKS = (
    "[Please note the following.|Here are the details.|We write to you about the open items.|As "
    "discussed on the phone.]",
    "[Please confirm the amounts.|Let us know if anything is wrong.|Thank you for your help.|Please check this.|]",
)


def make_extraction(rng: random.Random, world: World) -> Example:
    rows = [
        {"code": world.code(), "name": world.person(), "amount": world.amount(), "date": world.date()}
        for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))
    ]
    sentences = [fill(vary(rng, rng.choice(_SENTENCES)), row) for row in rows]
    text = " ".join((vary(rng, _LINKS[0]), *sentences, vary(rng, _LINKS[1]))).strip()
    answer = "\n".join(fill("- Contract {code}: {name}, {amount}, {date}", row) for row in rows)
    return compose(
        rng, task="extraction", instruction=vary(rng, rng.choice(_EXTRACT)).strip(), material=text,
        answer=answer,
        system=vary(rng, rng.choice(_SYSTEM)),
        facts={"values": "|".join(value for row in rows for value in row.values())},
    )  # fmt: skip
