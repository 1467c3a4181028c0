"""Journals record the part of a stream that the client has, so that the stream can resume on another server."""

from __future__ import annotations

from array import array

import msgspec
from slipstream_core.manifest.table import Route
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.upstreams.base import Committed, Drafting, Piece, Usage
from slipstream_gateway.upstreams.openai_continuation import is_open_stop, read_forwarded

MAX_FORWARDED_BYTES = 8 * 1024 * 1024
# Features that do not change the served distribution beyond temperature and filters.
NEUTRAL = frozenset(
    {
        "chat_template_kwargs",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "stream_options.continuous_usage_stats",
    }
)
# Features with the same effect on every token, whatever the tokens before it are.
_PER_TOKEN = NEUTRAL | {"bad_words", "logit_bias", "min_p"}


class Journal:
    """The pieces of a stream in the order in which they are sent to the client: their bytes and their token ids.
    Another server can continue the answer by its text (`by_text`) or by its token ids (`by_tokens`). The bytes are
    parsed only for a resumption.

    Before the end of a stream only its token ids give the number of tokens: an event may hold several, of one
    speculative step or of several steps that the server sent together.
    """

    def __init__(self, request: GenerationRequest, *, by_text: bool, by_tokens: bool) -> None:
        self._request = request
        self._by_text = by_text
        self._by_tokens = by_tokens
        self._blocks: list[bytes] = []
        self._size_bytes = 0
        self._token_ids = array("i")

    def add(self, piece: Piece) -> None:
        """Records one piece. Must cost next to nothing, because it runs for each chunk of each stream."""
        if self._size_bytes <= MAX_FORWARDED_BYTES:
            self._blocks.append(piece.data)
            self._size_bytes += len(piece.data)
            self._token_ids.extend(piece.token_ids)

    def committed(self, usage: Usage) -> Committed | None:
        """The recorded part of an answer with `usage` so far; None if it does not suffice for a resumption."""
        if self._size_bytes > MAX_FORWARDED_BYTES:
            return None
        found = read_forwarded(self._blocks, usage, least_tokens=len(self._token_ids))
        if found is None or (not self._by_tokens and is_open_stop(found.text, self._request.stop)):
            return None
        if self._by_tokens:
            ids, text = tuple(self._token_ids), found.text if self._by_text else ""
            found = msgspec.structs.replace(found, text=text, token_ids=ids, output_tokens=len(ids))
        limit = self._request.max_tokens
        return found if limit is None or found.output_tokens < limit else None


def journal_of(request: GenerationRequest, route: Route, drafting: Drafting) -> Journal | None:
    """The journal for the stream of `request` from a server with `drafting`. None: the stream cannot resume on another
    server.

    Only a single answer of free text can resume. Otherwise the continuation would differ from the uninterrupted answer:
    with several answers; if the next token depends on more than the text before it (penalties, a grammar); or if the
    answer has more than text (log-probabilities, tool calls). The policy's `resume` may forbid all resumptions, or
    permit resumption by text if no ids are known.
    """
    allowed = "exact" if route.policy is None else route.policy.spec.resume
    if allowed == "never" or not request.stream or request.n != 1:
        return None
    if not has_plain_text(request):
        return None
    by_text = allowed == "text" and _is_open_text(request)
    # A server counts bad words from the first token of its own.
    by_tokens = drafting.continues(request) and "bad_words" not in request.features
    return Journal(request, by_text=by_text, by_tokens=by_tokens) if by_text or by_tokens else None


def has_plain_text(request: GenerationRequest) -> bool:
    """Whether the answer is text alone, and each of its tokens depends only on those before it."""
    return not request.structured_output and request.features <= _PER_TOKEN


def _is_open_text(request: GenerationRequest) -> bool:
    """Whether the answer is a text of its own, so that its beginning can be appended to the prompt."""
    if request.endpoint is Endpoint.CHAT:
        return bool(request.messages) and request.messages[-1].role != "assistant"
    return isinstance(request.prompt, str)


def same_target(one: Route, other: Route) -> bool:
    """Whether both routes serve the same target, so that the servers of each can continue answers of the other's
    servers."""
    return (
        one.pair.metadata.key == other.pair.metadata.key
        and one.pair.spec.target == other.pair.spec.target
        and (one.plain.protocol, one.plain.model) == (other.plain.protocol, other.plain.model)
        and one.adapter == other.adapter
    )
