"""Copies of answers while they are sent to clients, and the choice of requests that get one."""

from __future__ import annotations

import time

from slipstream_core.manifest.capture import Capture
from slipstream_core.manifest.objects import SpeculationPolicy
from slipstream_core.manifest.table import Route, RoutingTable
from slipstream_core.types import Decision, Endpoint, GenerationRequest

from slipstream_gateway.capture.frames import Captured
from slipstream_gateway.upstreams.base import Piece, Tokens, Usage

MAX_ANSWER_BYTES = 1024 * 1024
_BYTES_PER_TOKEN = 8


class AnswerCopy:
    """The pieces of one answer with one choice, up to `MAX_ANSWER_BYTES`; beyond it none is kept."""

    __slots__ = ("is_too_large", "pieces", "size_bytes")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.size_bytes = 0
        self.is_too_large = False

    def add(self, piece: Piece) -> None:
        """Must cost next to nothing, because it runs for each chunk of each stream."""
        size = len(piece.text) if isinstance(piece, Tokens) else len(piece.data)
        self.size_bytes += size + _BYTES_PER_TOKEN * len(piece.token_ids)
        if self.size_bytes <= MAX_ANSWER_BYTES:
            self.pieces.append(piece)
        elif not self.is_too_large:
            self.is_too_large = True
            self.pieces.clear()


def is_drawn(
    request: GenerationRequest, policy: SpeculationPolicy | None, *, request_class: str, key_id: str, draw: float
) -> bool:
    """Whether the answer to `request` is kept. `draw` in [0, 1) is compared with the share of the class; `key_id` is
    the public id of the caller's key, empty without one. Several answers to one request are never kept, nor are those
    of the Responses API."""
    capture = None if policy is None else policy.spec.capture
    if capture is None or request.choices > 1 or request.capture is False or request.endpoint is Endpoint.RESPONSES:
        return False
    if (capture.consent == "required" and not request.capture) or key_id in capture.exclude_keys:
        return False
    return draw < capture.share_of(request_class)


def captures_of(table: RoutingTable) -> dict[str, Capture]:
    """The settings of each pair whose policy has some."""
    found = {route.pair.metadata.key: route.policy for route in table.routes.values() if route.policy is not None}
    return {pair: policy.spec.capture for pair, policy in found.items() if policy.spec.capture is not None}


def captured(
    copy: AnswerCopy,
    *,
    request: GenerationRequest,
    route: Route,
    decision: Decision,
    usage: Usage,
    fingerprint: str,
    request_id: str,
    key_id: str,
) -> Captured:
    """The frame of a whole answer."""
    pieces = copy.pieces
    tokens = [piece for piece in pieces if isinstance(piece, Tokens)]
    target = route.pair.spec.target
    return Captured(
        pair=route.pair.metadata.key,
        model=request.model,
        target="" if target is None else "@".join(filter(None, (target.source, target.revision))),
        fingerprint=fingerprint,
        request_id=request_id,
        key=key_id,
        time_s=time.time(),
        request_class=decision.request_class,
        arm=decision.arm,
        draft_length=decision.draft_length,
        temperature=request.temperature,
        top_p=request.top_p,
        endpoint=request.endpoint,
        request=request.raw,
        text="".join(piece.text for piece in tokens),
        wire=tuple([piece.data for piece in pieces if not isinstance(piece, Tokens)]),
        stream=request.stream,
        finish_reason=(tokens[-1].finish_reason or "") if tokens else "",
        token_ids=tuple([token for piece in pieces for token in piece.token_ids]),
        prompt_token_ids=tuple([token for piece in pieces for token in piece.prompt_token_ids]),
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        drafted=usage.drafted,
        accepted=usage.accepted,
        steps=usage.steps,
        rejected_at=usage.rejected_at,
    )
