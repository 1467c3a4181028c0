"""Bounds of a pair on fields of requests, beyond which its gateways refuse a request.

By default nothing is refused that the servers take: only servers that gateways reach over Triton's tensors have bounds,
those of Slipstream's model (`slipstream_engine.triton_server.inputs`) and of the gateway, which sends each choice as a
request of its own. OpenAI-compatible servers check their requests themselves.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_OWN = "Default: the servers decide; for servers of protocol triton"


class RequestBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The largest values that gateways accept in requests for a pair."""

    max_prompts: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description="Maximum number of prompts of a text completion. Default: the servers decide."),
    ] = None
    max_choices: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description=f"Maximum number of answers of a request: its prompts times n, or best_of. {_OWN} 32."),
    ] = None
    max_stop_strings: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description=f"Maximum number of stop strings. {_OWN} 64."),
    ] = None
    max_stop_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | None,
        Meta(description=f"Maximum length of each stop string in bytes of UTF-8. {_OWN} 1,024."),
    ] = None
    max_temperature: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(description=f"Maximum sampling temperature. {_OWN} 100."),
    ] = None


NO_BOUNDS = RequestBounds()
TENSOR_BOUNDS = RequestBounds(max_choices=32, max_stop_strings=64, max_stop_bytes=1024, max_temperature=100.0)
"""Those of servers of protocol triton."""


def merged(own: RequestBounds | None, default: RequestBounds) -> RequestBounds:
    """The bounds `own` of a pair, with those of `default` where it has none."""
    if own is None:
        return default
    given = {name: value for name in own.__struct_fields__ if (value := getattr(own, name)) is not None}
    return msgspec.structs.replace(default, **given)
