"""Refusals of a Triton model in the words of the request: its fields and values in place of tensors.

The model names a tensor first (`stop[1]: expected …`, `text_input holds no tokens`), except in the few messages of
`_known`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from slipstream_core.errors import InvalidRequest, RequestCode, shorten
from slipstream_core.types import GenerationRequest

_PROMPT = "prompt"
_FIELDS: Mapping[str, str] = {
    "text_input": _PROMPT,
    "input_ids": _PROMPT,
    **{name: name for name in ("messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop")},
}
"""The field of the request for each tensor that a client's value is sent in. Other tensors are the gateway's own."""
_NAMED = re.compile(r"(?P<tensor>[a-z_]+)(?P<path>\[\d+\](?:\.\w+)?)?:? (?P<what>.+)", re.DOTALL)
_NO_TOKENS = re.compile(r"the prompt is empty|\w+ holds no tokens")
_UNKNOWN_TOKEN = re.compile(r"token id (-?\d+) is out(?:side the vocabulary of (\d+)| of vocabulary)", re.IGNORECASE)


def prompt_field(request: GenerationRequest) -> str:
    """The field that holds the prompt."""
    return "messages" if request.messages else _PROMPT


def in_request_words(text: str, request: GenerationRequest, prompt: str) -> InvalidRequest:
    """The error for the model's refusal `text` of `request`, whose prompt is the client's field `prompt`."""
    if (error := _known(text, request, prompt)) is not None:
        return error
    named = _NAMED.fullmatch(text)
    field = _FIELDS.get(named["tensor"]) if named is not None else None
    if named is None or field is None:
        return InvalidRequest(text)
    where = f"{prompt if field == _PROMPT else field}{named['path'] or ''}"
    return InvalidRequest(f"Invalid '{where}': {named['what'].rstrip('.')}.", param=where)


def _known(text: str, request: GenerationRequest, field: str) -> InvalidRequest | None:
    if _NO_TOKENS.fullmatch(text):
        got = "none" if request.messages else shorten(msgspec.json.encode(request.prompt).decode())
        return InvalidRequest(f"Invalid '{field}': expected at least one token, got {got}.", param=field)
    if unknown := _UNKNOWN_TOKEN.search(text):
        of = f"of the model's {unknown[2]} token ids" if unknown[2] else "of the model's token ids"
        where = _place_of(int(unknown[1]), request, field)
        message = f"Invalid '{where}': expected one {of}, got {unknown[1]}."
        return InvalidRequest(message, param=where, code=RequestCode.VALUE)
    return None


def _place_of(token_id: int, request: GenerationRequest, field: str) -> str:
    ids = request.prompt if isinstance(request.prompt, tuple) else ()
    return f"{field}[{ids.index(token_id)}]" if token_id in ids else field
