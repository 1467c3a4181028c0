"""Bounds of a pair on fields of requests, beyond which its gateways refuse a request.

By default nothing is refused that the servers take: they check their requests themselves.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slipstream_core.manifest.base import Spec

_DEFAULT = "Default: the servers decide."


class RequestBounds(Spec, frozen=True, kw_only=True):
    """The largest values that gateways accept in requests for a pair."""

    max_prompts: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description=f"Maximum number of prompts of a text completion. {_DEFAULT}"),
    ] = None
    max_choices: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description=f"Maximum number of answers of a request: its prompts times n, or best_of. {_DEFAULT}"),
    ] = None
    max_stop_strings: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description=f"Maximum number of stop strings. {_DEFAULT}"),
    ] = None
    max_stop_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | None,
        Meta(description=f"Maximum length of each stop string in bytes of UTF-8. {_DEFAULT}"),
    ] = None
    max_temperature: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(description=f"Maximum sampling temperature. {_DEFAULT}"),
    ] = None


NO_BOUNDS = RequestBounds()
