"""The key of a request's estimates: a deterministic hash of its class, its form and its sender.

It is the same on every replica and in every process; the prompt cannot be recovered from it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

import msgspec
from slipstream_core.observation import Subject
from slipstream_core.types import GenerationRequest, RequestProfile

_SYSTEM_HEAD_CHARS = 1000
_SYSTEM_TAIL_CHARS = 400
_CACHE_ENTRIES = 512
_SEPARATOR = "\x1f"

# Parts of a system prompt that vary between requests: today's date, a ticket's number, a user's name. A word is matched
# from its start only, and once, because a text without spaces must not take quadratic time.
_VARIABLE = re.compile(r"(?<!\S)[^\s\d@]*+[\d@]\S*|(?<=[a-zß-ÿ,] )[A-Z][a-z]+")
_SHAPES = frozenset({"response_format", "tools", "functions", "guided_json", "guided_regex", "guided_choice",
                     "guided_grammar", "structured_outputs"})  # fmt: skip


class _Shape(msgspec.Struct):
    """The parameters that shape an answer, as received."""

    response_format: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    functions: msgspec.Raw = msgspec.Raw()
    guided_json: msgspec.Raw = msgspec.Raw()
    guided_regex: msgspec.Raw = msgspec.Raw()
    guided_choice: msgspec.Raw = msgspec.Raw()
    guided_grammar: msgspec.Raw = msgspec.Raw()
    structured_outputs: msgspec.Raw = msgspec.Raw()


class Fingerprinter:
    """Subjects of requests. It caches system prompts; the result does not depend on that."""

    def __init__(self) -> None:
        self._masked: dict[str, str] = {}
        self._shape = msgspec.json.Decoder(_Shape)

    def subject(
        self,
        request: GenerationRequest,
        profile: RequestProfile,
        *,
        pair: str,
        key_id: str,
        is_authenticated: bool,
        adapter: str = "",
    ) -> Subject:
        """The subject of `request`; never raises, whatever the prompt contains."""
        system, turns = _parts(request)
        source = _SEPARATOR.join((pair, key_id, self._masked_system(system)))
        temperature = temperature_bucket(request.temperature)
        template = _SEPARATOR.join((
            source, request.model, f"{profile.request_class} {temperature} {_coarse(turns)}",
            _SEPARATOR.join(request.stop), self._answer_shape(request),
        ))  # fmt: skip
        return Subject(
            pair=pair,
            fingerprint=_digest(template),
            source=_digest(source),
            cold_class=profile.request_class,
            temperature=temperature,
            key=_name_digest(key_id) if is_authenticated else "",
            adapter=_name_digest(adapter) if adapter else "",
        )

    def _masked_system(self, system: str) -> str:
        sample = system
        if len(system) > _SYSTEM_HEAD_CHARS + _SYSTEM_TAIL_CHARS:
            sample = system[:_SYSTEM_HEAD_CHARS] + system[-_SYSTEM_TAIL_CHARS:]
        found = self._masked.get(sample)
        if found is None:
            if len(self._masked) >= _CACHE_ENTRIES:
                self._masked.clear()
            found = self._masked[sample] = _VARIABLE.sub("0", sample)
        return found

    def _answer_shape(self, request: GenerationRequest) -> str:
        """Response format and tools as the client wrote them; empty if unused."""
        if not request.features or _SHAPES.isdisjoint(request.features):
            return "json" if request.structured_output else ""
        try:
            shape = self._shape.decode(request.raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _SEPARATOR.join(sorted(request.features))
        parts = [bytes(getattr(shape, name)) for name in sorted(_SHAPES & request.features)]
        return blake2b(b"\x1f".join(parts), digest_size=8).hexdigest()


def _parts(request: GenerationRequest) -> tuple[str, int]:
    """The first system prompt, and the number of user messages."""
    if request.prompt is not None:
        return "", 1
    system, turns = "", 0
    for message in request.messages:
        if message.role == "user":
            turns += 1
        elif not system and message.role in ("system", "developer"):
            system = message.content
    return system, turns


def _coarse(turns: int) -> int:
    return turns if turns < 2 else 2 if turns < 4 else 4


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@lru_cache(maxsize=_CACHE_ENTRIES)
def _name_digest(name: str) -> str:
    return _digest(name)


def temperature_bucket(temperature: float) -> int:
    """0: greedy, 1: up to 0.5, 2: up to 1, 3: hotter."""
    return 0 if temperature <= 0 else 1 if temperature <= 0.5 else 2 if temperature <= 1 else 3
