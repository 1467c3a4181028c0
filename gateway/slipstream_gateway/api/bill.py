"""The final number of tokens that a request is charged for: the known ones, else the requested ones."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.types import GenerationRequest

from slipstream_gateway.request.call import Call
from slipstream_gateway.upstreams.base import Usage

# With these a server may generate tokens that do not appear in the answer's text, such as special tokens.
_UNSEEN = frozenset(
    {"allowed_token_ids", "best_of", "ignore_eos", "include_reasoning", "logit_bias", "use_beam_search"}
)


class Bill(NamedTuple):
    """Numbers of tokens; None if unknown."""

    prompt_tokens: int | None
    output_tokens: int | None


_NOTHING = Bill(0, 0)


def bill_of(call: Call, *, client_waited: bool) -> Bill:
    """The bill of a finished call. `client_waited` is False if the client left before its answer; a server may have
    worked on the answer nevertheless."""
    if not call.was_sent:
        return _NOTHING
    if call.has_begun:
        usage = call.usage
        return Bill(usage.prompt_tokens or None, _output_tokens(call.request, usage))
    if client_waited:
        return _NOTHING
    seen = call.request.stream and not _hides_tokens(call.request)
    return Bill(None, 0 if seen else None)


def _output_tokens(request: GenerationRequest, usage: Usage) -> int | None:
    """The output tokens of an answer that has begun, as far as it was received."""
    if usage.exact:
        return usage.most_output_tokens
    if _hides_tokens(request):
        return None
    limit = request.max_tokens
    return usage.most_output_tokens if limit is None else min(usage.most_output_tokens, limit * request.choices)


def _hides_tokens(request: GenerationRequest) -> bool:
    return not _UNSEEN.isdisjoint(request.features)
