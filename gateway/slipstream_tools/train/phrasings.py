"""Synthetic requests from phrasings in this package, so that the classifier learns the words of an instruction, not a
corpus.

`phrasings/<task>.txt` has one phrasing per line: `\\n` is a line break, `{name}` a slot of `slots.toml`, and a line
that begins with `@system ` has its system prompt before the first line break. Some materials of the requests are pieces
of the training file's own prompts, because the topic of a text must not determine the task.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files

from slipstream_core.types import Endpoint, GenerationRequest, Message, TaskType
from slipstream_gateway.decide.classify.model import TASKS

from slipstream_tools.train.rows import Row

SOURCE = "phrasings"
_PER_PHRASING, _PER_FIXED_PHRASING = 8, 2
_MAX_PIECES = 2000
_SLOT = re.compile(r"\{(\w+)\}")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_MATERIAL = "\n\n{text}"
_POLITE = (
    "Please ", "Can you ", "Could you please ", "I want you to ", "I need you to ", "Hi, ", "Hello! ", "ok now ",
    "Now ", "Kindly ", "Your task: ", "Task: ", "### Instruction\n", "Instruction: ",
)  # fmt: skip
_ADDED = (
    " Thanks!", " Please.", " Be concise.", " Answer briefly.", " Use simple language.", " Do not add anything else.",
    " Keep it short.", " In detail please.",
)  # fmt: skip
_SYSTEM = (
    "You are a helpful assistant.", "You are an AI assistant.", "Be concise.", "You work in customer service.",
    "You are the assistant of a logistics company. Be polite and professional.", "Answer as well as you can.",
)  # fmt: skip
_WRAPPERS = (
    *["{text}"] * 6, '"""\n{text}\n"""', '"{text}"', "<text>\n{text}\n</text>", "Text: {text}", "---\n{text}\n---",
    "```\n{text}\n```", "Input:\n{text}",
)  # fmt: skip


def phrased_rows(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Requests of every task, with pieces of `rows`' prompts among their materials."""
    maker = _Maker(_pieces(rows, rng), rng)
    return [
        Row(request=maker.request(line), source=SOURCE, task=task)
        for task in TASKS
        for line in _phrasings(task)
        for _ in range(_PER_PHRASING if "{" in line else _PER_FIXED_PHRASING)
    ]


def _phrasings(task: TaskType) -> Iterator[str]:
    text = (files(__package__) / "phrasings" / f"{task}.txt").read_text(encoding="utf-8")
    yield from (line.replace("\\n", "\n") for line in text.splitlines() if line)


def _slots() -> dict[str, list[str]]:
    return tomllib.loads((files(__package__) / "phrasings" / "slots.toml").read_text(encoding="utf-8"))


def _pieces(rows: Sequence[Row], rng: random.Random) -> list[str]:
    """Pieces of 80 to 600 characters from long prompts."""
    found: list[str] = []
    for _ in range(3 * _MAX_PIECES if rows else 0):
        text = rng.choice(rows).request.messages[-1].content
        if len(text) > 250 and len(found) < _MAX_PIECES:
            start = text.find(" ", rng.randrange(60, len(text) - 150)) + 1
            found.append(text[start : start + rng.randrange(80, 600)])
    return found


class _Maker:
    """Fills phrasings at random."""

    def __init__(self, pieces: Sequence[str], rng: random.Random) -> None:
        self._pieces, self._rng, self._slots = pieces, rng, _slots()

    def request(self, line: str) -> GenerationRequest:
        """A request with the instruction `line`: before or after its material, quoted or not, polite or not."""
        rng, system = self._rng, ""
        plain = line.isascii()
        if line.startswith("@system "):
            system, line = line.removeprefix("@system ").split("\n", 1)
        elif rng.random() < 0.12:
            system = rng.choice(_SYSTEM)
        if line.endswith(_MATERIAL):
            system, line = self._arrange(line.removesuffix(_MATERIAL), system, plain=plain)
        elif plain and line[0].isupper() and "{" in line[8:] and rng.random() < 0.12:
            line = rng.choice(_POLITE[:10]) + line[0].lower() + line[1:]
        text = self._fill(line)
        if rng.random() < 0.15:
            text = text.lower()
        if rng.random() < 0.1:
            text = text.rstrip(".?!")
        messages = [Message(role="system", content=self._fill(system))] if system else []
        messages.append(Message(role="user", content=text))
        return GenerationRequest(endpoint=Endpoint.CHAT, model="", messages=tuple(messages))

    def _arrange(self, instruction: str, system: str, *, plain: bool) -> tuple[str, str]:
        """System prompt and text, with the place of instruction and material."""
        rng = self._rng
        material = rng.choice(_WRAPPERS)
        if plain and instruction[:1].isupper() and rng.random() < 0.15:
            instruction = rng.choice(_POLITE) + instruction[0].lower() + instruction[1:]
        if plain and rng.random() < 0.15:
            instruction += rng.choice(_ADDED)
        draw = rng.random()
        if draw < 0.3:
            return system, f"{material}\n\n{instruction}"
        if draw < 0.5:
            return system, f"{instruction}{' ' if draw < 0.4 else chr(10)}{material}"
        if draw < 0.6 and not system:
            return instruction, material
        return system, f"{instruction}\n\n{material}"

    def _fill(self, line: str) -> str:
        return _SLOT.sub(self._value, line)

    def _value(self, match: re.Match[str]) -> str:
        slot, rng = match[1], self._rng
        if slot == "text" and self._pieces and rng.random() < 0.6:
            return rng.choice(self._pieces)
        if slot == "short" and self._pieces and rng.random() < 0.4:
            return rng.choice(_SENTENCE_END.split(rng.choice(self._pieces)))[:160]
        return rng.choice(self._slots[slot]) if slot in self._slots else match[0]
