"""One corpus example, and two text helpers that all generators use."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "held_out"]
Task = Literal["summary", "json", "reply", "sql", "python", "status", "label", "extraction", "notes", "repeat"]
TASKS: tuple[Task, ...] = (
    "summary", "json", "reply", "sql", "python", "status", "label", "extraction", "notes",
)  # fmt: skip

_CHOICE = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One chat turn, in the shape of the OpenAI API."""

    role: Literal["system", "user", "assistant"]
    content: str

    def as_dict(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A prompt, its correct answer, and the facts to check another answer against.

    `messages` ends with the user's turn and does not contain the answer. `instruction` and `material` are its parts,
    empty if there is only one text.
    """

    task: Task
    messages: tuple[Message, ...]
    answer: str
    facts: dict[str, str] = field(default_factory=dict)
    instruction: str = ""
    material: str = ""

    def chat(self) -> list[dict[str, str]]:
        return [message.as_dict() for message in self.messages]


def vary(rng: random.Random, text: str) -> str:
    """Replace each innermost `[a|b|c]` with one of its choices, until none is left."""
    while match := _CHOICE.search(text):
        text = text[: match.start()] + rng.choice(match[1].split("|")) + text[match.end() :]
    return text


def compose(
    rng: random.Random, *, task: Task, instruction: str, material: str, answer: str,
    facts: dict[str, str], system: str,
) -> Example:  # fmt: skip
    """Combine an instruction and its material in one of several common layouts."""
    layout = rng.random()
    if layout < 0.12:  # the instruction is in the system prompt, the user only pastes the material
        messages: tuple[Message, ...] = (
            Message(role="system", content=instruction),
            Message(role="user", content=material),
        )
    else:
        gap = "\n\n" if rng.random() < 0.8 else "\n"
        parts = (instruction, material) if layout < 0.78 else (material, instruction)
        messages = (Message(role="user", content=gap.join(parts)),)
        if rng.random() < 0.45:
            messages = (Message(role="system", content=system), *messages)
    return Example(
        task=task, messages=messages, answer=answer, facts=facts, instruction=instruction, material=material
    )  # fmt: skip
