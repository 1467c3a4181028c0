"""The text of one answer as its tokens arrive: whole characters only, up to the first stop string.

Text that may still become a stop string is held back until it cannot. Among several stop strings the one completed
first wins, and among those completed at the same character the longest. The result depends only on the tokens, not on
their division into pushes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from slipstream_engine.errors import RequestError
from slipstream_engine.text.token_bytes import IncrementalDecoder
from slipstream_engine.text.tokenizer import Tokenizer, check_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_STOP_CHARACTERS = 4096
"""Limit on the total length of a request's stop strings, because the automaton is built in the engine."""

# An unfinished character has at most 3 bytes and so 3 tokens; the other tokens may be special tokens between them.
_TAIL_TOKENS = 16


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one push. `used` counts the ids up to and including the one that completed a stop string, or all ids if
    none did. Ids after `used` are not part of the answer."""

    text: str
    stopped: bool
    used: int


class TextStream:
    """Incremental text of one answer.

    `prompt_tail_ids` is the prompt or its end. It determines whether the answer starts a text (SentencePiece then drops
    the first space), and the answer completes a character that the prompt left unfinished. The prompt is neither
    emitted nor matched by a stop string. `resume_ids` are output tokens committed earlier. The stream continues as if
    it had pushed them, so text that was held back then is emitted here. Special tokens have no text; a stop string that
    equals a special token's text stops at that token.

    Raises RequestError for an unusable stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        prompt_tail_ids: Sequence[int] = (),
        resume_ids: Sequence[int] = (),
    ) -> None:
        self._decoder = IncrementalDecoder(tokenizer.token_bytes)
        self._decoder.prime(prompt_tail_ids, last=_TAIL_TOKENS)
        self._scanner = StopScanner(stop) if stop else None
        self._stop_ids = tokenizer.special_ids & {tokenizer.vocab.get(text) for text in stop}
        self._stopped = False
        self.push(resume_ids)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete, possibly within the resumed tokens."""
        return self._stopped

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Add `ids` and return the released text. After a stop there is no text, and no id is used."""
        if self._stopped:
            return TextDelta(text="", stopped=True, used=0)
        if self._scanner is None:
            return TextDelta(text=self._decoder.feed(ids), stopped=False, used=len(ids))
        released = []
        for used, token_id in enumerate(ids, start=1):
            if token_id in self._stop_ids:
                released.append(self.flush())
                self._stopped = True
            elif text := self._decoder.feed((token_id,)):
                text, self._stopped = self._scanner.feed(text)
                released.append(text)
            if self._stopped:
                return TextDelta(text="".join(released), stopped=True, used=used)
        return TextDelta(text="".join(released), stopped=False, used=len(ids))

    def flush(self) -> str:
        """End an answer without a stop string: the text held back, and U+FFFD for an unfinished character."""
        if self._stopped:
            return ""
        text = self._decoder.finish()
        if self._scanner is None:
            return text
        text, self._stopped = self._scanner.feed(text)
        return text if self._stopped else text + self._scanner.release()


class StopScanner:
    """Finds stop strings in a stream of characters (Aho & Corasick, 1975): constant work per character.

    A state is the longest suffix of the text that is a prefix of some stop string. `depth[state]` is its length, the
    amount of text held back. `matched[state]` is the length of the longest stop string that ends there, or 0.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        _check_stop(stop)
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._matched = [0]
        for text in stop:
            self._insert(text)
        self._fail = self._link()
        self._state = 0
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that cannot be part of a stop string, and whether one is complete. Text from that stop string on is
        dropped."""
        buffer = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            self._state = state = self._step(self._state, character)
            if length := self._matched[state]:
                self._held = ""
                return buffer[: end - length], True
        cut = len(buffer) - self._depth[self._state]
        self._held = buffer[cut:]
        return buffer[:cut], False

    def release(self) -> str:
        """Return the text held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    def _insert(self, text: str) -> None:
        state = 0
        for depth, character in enumerate(text, start=1):
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(depth)
                self._matched.append(0)
            state = self._next[state][character]
        self._matched[state] = len(text)

    def _link(self) -> list[int]:
        """Compute the failure links, breadth first: the state of the longest proper suffix."""
        self._fail = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], character)
                self._matched[child] = self._matched[child] or self._matched[self._fail[child]]
                queue.append(child)
        return self._fail


def _check_stop(stop: Iterable[str]) -> None:
    total = 0
    for number, text in enumerate(stop):
        if not text:
            raise RequestError(f"stop[{number}] is empty", param="stop")
        check_text(text, f"stop[{number}]")
        total += len(text)
    if total > MAX_STOP_CHARACTERS:
        raise RequestError(f"stop has {total} characters in all, more than {MAX_STOP_CHARACTERS}", param="stop")
