"""Capture's part in a call: it draws answers before they begin, and sends the whole ones to the capture writer."""

from __future__ import annotations

import logging
import time

from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.random_bytes import random_share
from slipstream_core.types import Decision

from slipstream_gateway.capture.channel import CaptureChannel
from slipstream_gateway.capture.copies import KeptAnswer, is_drawn
from slipstream_gateway.capture.frames import Result
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.answer_copy import MAX_ANSWER_BYTES
from slipstream_gateway.request.call import Call
from slipstream_gateway.request.candidates import Attempt
from slipstream_gateway.request.journal import has_plain_text

_log = logging.getLogger(__name__)


class Capturing:
    """Draws answers for the writer behind `channel`."""

    def __init__(self, channel: CaptureChannel, *, fleet: Fleet) -> None:
        self.channel = channel
        self.fleet = fleet

    def draw(self, call: Call, served: ServedRoute) -> KeptCall | None:
        """A `Before` step: draws answers for capture."""
        draw = random_share()
        if call.decision is None or not self.is_kept(call, call.decision, served, draw=draw):
            return None
        return KeptCall(self, served.route.policy, draw=draw)

    def is_kept(self, call: Call, decision: Decision, served: ServedRoute, *, draw: float) -> bool:
        """Whether the answer is kept, by its `draw` in [0, 1). One that a proxy carries is not."""
        request, context = call.request, call.context
        return context.carrier is None and is_drawn(
            request,
            served.route.policy,
            request_class=decision.request_class,
            key_id=context.caller.key_id,
            draw=draw,
        )


class KeptCall:
    """The answer to one call that was drawn by `policy`."""

    def __init__(self, capturing: Capturing, policy: SpeculationPolicy | None, *, draw: float) -> None:
        self._capturing = capturing
        self._policy = policy
        self._draw = draw

    def wants_token_ids(self, call: Call, attempt: Attempt) -> bool:
        return has_plain_text(call.request)

    def ended(self, call: Call) -> None:
        """Sends a whole answer of the serving revision to the capture writer. Never raises."""
        channel = self._capturing.channel
        try:
            kept = self._kept(call)
            if isinstance(kept, Result):
                channel.drop(call.pair, kept)
            elif kept is not None:
                channel.send(kept)
        except Exception:  # the answer is sent, and its request must not fail
            _log.exception("an answer could not be captured")
            channel.drop(call.pair, Result.FAILED)

    def _kept(self, call: Call) -> KeptAnswer | Result | None:
        """The answer to send, or the cause of its loss. None: a new policy does not draw it."""
        served, decision, copy = self._capturing.fleet.current.by_name.get(call.request.model), call.decision, call.copy
        if (
            copy is None
            or call.status != "ok"
            or call.resumed
            or served is None
            or decision is None
            or decision.revision
        ):
            return Result.INCOMPLETE
        size_bytes = copy.size_bytes()
        if size_bytes > MAX_ANSWER_BYTES:
            return Result.TOO_LARGE
        # The policy may have changed since the request began.
        is_new = served.route.policy is not self._policy
        if is_new and not self._capturing.is_kept(call, decision, served, draw=self._draw):
            return None
        return KeptAnswer(
            call=call,
            decision=decision,
            copy=copy,
            target=served.route.pair.spec.target,
            size_bytes=len(call.request.raw) + size_bytes,
            time_s=time.time(),
        )
