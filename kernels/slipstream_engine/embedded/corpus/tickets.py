"""E-mails and tickets: JSON fields, standard replies, labels."""

from __future__ import annotations

import json
import random

from .conversations import fill
from .entities import World
from .example import Example, compose, vary
from .reasons import LABELS, REASONS, Reason

JSON_FIELDS = (
    "customer_name", "email", "order_id", "product", "category", "reason", "issue", "priority", "sentiment",
    "needs_callback", "language",
)  # fmt: skip

_SYSTEM = (
    "You are an assistant [for|in] a [contact centre|customer service team].",
    "You [process|read|handle] [tickets|e-mails] for the [service team|support team].",
    "You answer [precisely|briefly|carefully] and [politely|without extra text].",
)
_JSON_INSTRUCTION = (
    "[Extract|Return|Give me|Please extract] the [ticket fields|fields|ticket data|data] [from this "
    "e-mail |of this "
    "ticket |from the message |]as [JSON|a JSON object|one JSON object].",
    "[Turn|Convert] [this|the following] [e-mail|ticket|message] [into|to] [JSON|a JSON object].",
    "[Read|Look at] the [e-mail|ticket|message] and [answer with JSON|return a JSON object|return only JSON].",
    "[Fill|Create] the [JSON record|JSON ticket] for this [e-mail|ticket|message][.|:]",
)
_REPLY_INSTRUCTION = (
    "[Write|Draft|Prepare|Please write|Create] [a|the|a standard|a polite] reply to [this|the following] "
    "[customer message|e-mail|customer|message][.|:]",
    "[Answer|Reply to] [this|the] [customer|customer e-mail|message][.|:| politely.]",
    "[How should we answer this e-mail?|What should we reply?] [Write the reply.|Draft the answer.]",
)
_LABEL_INSTRUCTION = (
    "[Classify|Label|Categorise] [this|the] [message|ticket|e-mail]. [Choose one "
    "of|Options|Labels|Possible labels]: "
    "{labels}.",
    "[Which|What] [label|category] fits [this|the] [message|ticket]? [Choose from|Answer with one word "
    "from]: {labels}.",
    "[Pick|Choose] [one|exactly one] [label|category] [from|out of] this list: {labels}. [Answer with one word.|]",
)
_PRIORITIES = {
    "low": "[There is no hurry.|Whenever you have time.|This is not urgent.]",
    "normal": "[Please let me know soon.|I look forward to your answer.|Please get back to me.]",
    "high": "[This is urgent.|Please act immediately.|I need a solution today.]",
}
_SENTIMENTS = {
    "neutral": "[I am writing about my order.|I have a request.|I have a short question.]",
    "negative": "[I am very disappointed.|I am really angry.|This is not acceptable.]",
    "positive": "[I am usually very happy with you.|I like your shop a lot.|Your service is normally great.]",
}


def _slots(world: World) -> dict[str, str]:
    return {
        "product": world.product(),
        "order": world.order_id(),
        "amount": world.amount(),
        "weekday": world.weekday(),
    }


def _message(rng: random.Random, reason: Reason, slots: dict[str, str], *parts: str) -> str:
    """The customer's words: an opening of the reason among other sentences."""
    return fill(vary(rng, " ".join((*parts[:1], rng.choice(reason.openings), *parts[1:]))), slots)


def make_json(rng: random.Random, world: World) -> Example:
    reason, person, slots = rng.choice(REASONS), world.person(), _slots(world)
    priority, sentiment = rng.choice(list(_PRIORITIES)), rng.choice(list(_SENTIMENTS))
    callback = rng.random() < 0.4
    email = world.email(person)
    body = _message(
        rng, reason, slots, _SENTIMENTS[sentiment],
        "It is about [my|the] {product}, order [number |]{order}.", _PRIORITIES[priority],
        "[Please call me back.|Can you call me?|I would like a call.]" if callback else "",
    )  # fmt: skip
    sign = vary(rng, f"[Regards|Best regards|Kind regards|Thanks],\n{person}")
    greeting = vary(rng, "[Hello|Dear team|Hi|Good morning]")
    mail = rng.choice((
        f"From: {person} <{email}>\nSubject: {slots['product']}\n\n{greeting},\n{body.strip()}\n{sign}",
        f"From: {email}\n\n{greeting},\n{body.strip()}\n{sign}",
        f"Customer: {person}\nE-mail: {email}\nMessage: {body.strip()}",
    ))  # fmt: skip
    record: dict[str, object] = {
        "customer_name": person, "email": email, "order_id": slots["order"], "product": slots["product"],
        "category": reason.category, "reason": reason.label, "issue": reason.issue, "priority": priority,
        "sentiment": sentiment, "needs_callback": callback, "language": "en",
    }  # fmt: skip
    return compose(
        rng, task="json", instruction=vary(rng, rng.choice(_JSON_INSTRUCTION)), material=mail,
        answer=json.dumps(record, indent=2, ensure_ascii=False), system=vary(rng, rng.choice(_SYSTEM)),
        facts={key: str(record[key]) for key in ("customer_name", "email", "order_id", "reason", "priority")},
    )  # fmt: skip


def make_reply(rng: random.Random, world: World) -> Example:
    reason, person, slots = rng.choice(REASONS), world.person(), _slots(world)
    urgency = rng.choice(list(_PRIORITIES))
    body = _message(
        rng, reason, slots, rng.choice(list(_SENTIMENTS.values())),
        "My [order number|order] is {order}.", _PRIORITIES[urgency],
    )  # fmt: skip
    closing = {
        "low": "You do not need to do anything else, and we will keep you informed about every further step.",
        "normal": ("You will receive a confirmation by e-mail as soon as the work on your request is completed."),
        "high": "We are treating your request with priority and you will hear from us again today.",
    }[urgency]
    answer = (
        f"Dear {person},\n\n"
        f"Thank you for contacting us about order {slots['order']}. We are sorry for the inconvenience "
        "that this "
        f"has caused you, and we are happy to help.\n\n"
        f"{reason.reply} {closing}\n\n"
        "If you have any further questions, please reply to this message or call our service team from "
        "Monday to "
        "Friday between 8 a.m. and 6 p.m.\n\n"
        "Kind regards,\nYour customer service team"
    )
    return compose(
        rng, task="reply", instruction=vary(rng, rng.choice(_REPLY_INSTRUCTION)), answer=answer,
        material=vary(rng, "[Hello|Hi|Good morning|Dear team],\n") + body
        + vary(rng, "\n[Regards|Thanks|Best regards],\n")
        + person,
        system=vary(rng, rng.choice(_SYSTEM)),
        facts={"customer": person, "order": slots["order"], "reason_sentence": reason.reply},
    )  # fmt: skip


def make_label(rng: random.Random, world: World) -> Example:
    reason, slots = rng.choice(REASONS), _slots(world)
    others = [label for label in LABELS if label != reason.category]
    options = [reason.category, *rng.sample(others, k=rng.randint(2, len(others)))]
    rng.shuffle(options)
    extra = rng.choice((*_SENTIMENTS.values(), *_PRIORITIES.values(), "My order is {order}.", ""))
    message = _message(rng, reason, slots, rng.choice(("Hello,", "Hi,", "")), extra).strip()
    return compose(
        rng, task="label", answer=reason.category, material=vary(rng, "[|Message: |Ticket: ]") + message,
        instruction=fill(vary(rng, rng.choice(_LABEL_INSTRUCTION)), {"labels": ", ".join(options)}).strip(),
        system=vary(rng, rng.choice(_SYSTEM)), facts={"label": reason.category, "options": "|".join(options)},
    )  # fmt: skip
