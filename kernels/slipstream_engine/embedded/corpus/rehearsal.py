"""Copying facts word by word: a training exercise, not a task of the product.

A small model learns to copy names and numbers last. With texts that consist only of facts to copy, it learns that
within minutes instead of hours.
"""

from __future__ import annotations

import random

from .entities import World
from .example import Example, Message, vary

_INSTRUCTION = "[Repeat|Copy|Write again|Say again] [exactly|word by word|without changes|]: "


def make_repeat(rng: random.Random, world: World) -> Example:
    makers = (world.person, world.account_id, world.code, world.amount, world.date, world.order_id, world.product)
    items = [rng.choice(makers)() for _ in range(rng.randint(2, 9))]
    if rng.random() < 0.5:
        email_of = world.person()
        items.insert(rng.randrange(len(items)), f"{email_of} <{world.email(email_of)}>")
    text = rng.choice((", ", "; ", "\n", " / ")).join(items)
    return Example(
        task="repeat", messages=(Message(role="user", content=vary(rng, _INSTRUCTION) + text),), answer=text,
        facts={"text": text},
    )  # fmt: skip
