"""The bounded parts of a prompt that the classifier reads, so that a long prompt costs no more than a short one."""

from __future__ import annotations

from math import log, log1p
from operator import mul
from typing import NamedTuple

import numpy as np
from slipstream_core.types import GenerationRequest

# The instruction is at one end of a prompt; the middle is material.
_HEAD_CHARS = 500
_TAIL_CHARS = 250
_WIDE_HEAD_CHARS, _WIDE_TAIL_CHARS = 300, 150  # of scripts without spaces, whose characters say more
_SYSTEM_HEAD_CHARS, _SYSTEM_TAIL_CHARS = 300, 200
_FOLLOW_UP_CHARS = 40  # "shorter please": a message as short as that refers to the one before
_EARLIER_CHARS = 300
_MIN_MATERIAL, _SIZE_AT = 4.0, 4.0  # tokens, so that the log is finite, and the log of 55 tokens
_TOKENS_PER_MESSAGE = 4
_OTHER_TOKENS_PER_CHAR = 0.24

# Kinds of bytes; `_TOKENS` and the table below follow this order.
_LETTER, _CAPITAL, _DIGIT, _SPACE, _NEWLINE, _MARK, _LEAD, _WIDE_LEAD, _CONTINUATION = range(9)
# Tokens per byte of each kind, fitted to a byte-pair encoding with 100,000 entries over prompts in several languages.
_TOKENS = (0.186, 0.186, 0.79, 0.221, 0.351, 0.74, 0.186, 0.186, 0.491)

COUNTS = 12  # number of entries in `Prompt.counts`


class Prompt(NamedTuple):
    """`text` is both ends of the last user message, behind the one before if it is a follow-up, `system` both ends of
    the system prompt, as written.

    `material_tokens` counts the last user message, `prompt_tokens` everything, `answered_tokens` the last answer of the
    conversation, 0 without one; all are estimates. `counts` are inputs
    of the head for rare answers beyond words: digits, amounts, names, marks, and questions for them; each about 1 at
    most. Sizes are not among them: they reveal the corpus of a prompt.
    """

    text: str
    system: str
    prompt_tokens: int
    material_tokens: float
    answered_tokens: float
    counts: tuple[float, ...]

    @property
    def size(self) -> float:
        """The log of the material's tokens, from that at which the usual lengths of answers are stated."""
        return log(max(self.material_tokens, _MIN_MATERIAL)) - _SIZE_AT

    @property
    def mentions_json(self) -> bool:
        return self.counts[-1] > 0


def _sorts() -> bytes:
    sorts = bytearray([_MARK]) * 256
    for byte in range(128):
        character = chr(byte)
        if character.isdigit():
            sorts[byte] = _DIGIT
        elif character.isalpha():
            sorts[byte] = _CAPITAL if character.isupper() else _LETTER
    sorts[ord(" ")], sorts[ord("\n")] = _SPACE, _NEWLINE
    for byte in range(0x80, 256):
        sorts[byte] = _CONTINUATION if byte < 0xC0 else _WIDE_LEAD if 0xE3 <= byte < 0xEE else _LEAD
    return bytes(sorts)


_SORTS = _sorts()
# As kinds of bytes: a number behind a space, a number with a mark inside (an amount, a date), a capitalised word.
_NUMBER, _AMOUNT, _NAME = bytes((_SPACE, _DIGIT)), bytes((_DIGIT, _MARK, _DIGIT)), bytes((_CAPITAL, _LETTER))


def pieces(request: GenerationRequest) -> Prompt:
    """The parts of `request` that the classifier reads."""
    if isinstance(request.prompt, tuple):
        return Prompt("", "", len(request.prompt), float(len(request.prompt)), 0.0, (0.0,) * COUNTS)
    text, earlier, system, others, answered = request.prompt or "", "", "", 0, 0
    for message in request.messages:
        others += len(message.content)
        if message.role == "user":
            earlier, text = text, message.content
        elif message.role == "assistant":
            answered = len(message.content) or answered
        elif not system and message.role in ("system", "developer"):
            system = _ends(message.content, _SYSTEM_HEAD_CHARS, _SYSTEM_TAIL_CHARS)
    if earlier and len(text) <= _FOLLOW_UP_CHARS:
        text = f"{earlier[:_EARLIER_CHARS]}\n{text}"
    length, text = len(text), _ends(text, _HEAD_CHARS, _TAIL_CHARS)
    kinds = text.encode("utf-8", "replace").translate(_SORTS)
    found = np.bincount(np.frombuffer(kinds, np.uint8), minlength=9).tolist()
    material = sum(map(mul, _TOKENS, found)) * length / max(len(text), 1)
    rest = max(others - length, 0) * _OTHER_TOKENS_PER_CHAR if request.messages else 0.0
    if found[_WIDE_LEAD] > 0.5 * len(text):
        text = _ends(text, _WIDE_HEAD_CHARS, _WIDE_TAIL_CHARS)
    return Prompt(
        text,
        system,
        int(material + rest + _TOKENS_PER_MESSAGE * len(request.messages)) + 1,
        material,
        answered * _OTHER_TOKENS_PER_CHAR,
        _counts(text.lower(), system, kinds, found),
    )


def _ends(text: str, head: int, tail: int) -> str:
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def _counts(lowered: str, system: str, kinds: bytes, found: list[int]) -> tuple[float, ...]:
    """`lowered` is the text in small letters, `kinds` its bytes by kind, `found` the number of each kind."""
    size, words = len(lowered) + 1, found[_SPACE] + 1
    amounts = kinds.count(_AMOUNT)
    return (
        found[_DIGIT] / size * 5,
        log1p(found[_CAPITAL]) / 3,
        log1p(found[_NEWLINE]) / 2,
        log1p(found[_MARK]) / 4,
        kinds.count(_NUMBER) / words * 5,
        log1p(amounts) / 3,
        amounts / words * 5,
        kinds.count(_NAME) / words * 5,
        float("who" in lowered),
        float("when " in lowered or "year" in lowered),
        float("{" in lowered),
        float("json" in lowered or "json" in system or "JSON" in system),
    )
