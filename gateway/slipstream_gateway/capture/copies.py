"""The answers that are kept for capture: which ones they are, and what is kept of them."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter

import msgspec
from slipstream_core.manifest.capture import Capture
from slipstream_core.manifest.model_pair import Target
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.table import RoutingTable
from slipstream_core.types import Decision, Endpoint, GenerationRequest

from slipstream_gateway.capture.frames import Captured
from slipstream_gateway.request.answer_copy import AnswerCopy
from slipstream_gateway.request.call import Call

_data_of, _ids_of, _prompt_ids_of = attrgetter("data"), attrgetter("token_ids"), attrgetter("prompt_token_ids")


def is_drawn(
    request: GenerationRequest,
    policy: SpeculationPolicy | None,
    *,
    request_class: str,
    key_id: str,
    draw: float,
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
    found = {route.key: route.policy for route in table.routes.values() if route.policy is not None}
    return {pair: policy.spec.capture for pair, policy in found.items() if policy.spec.capture is not None}


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole answer from one server: the `call` that ended with it at `time_s`, its decision and its copy. The channel
    makes the frames of several answers at once, which costs each of them less. `size_bytes` is the size of the
    request's body and of the answer."""

    call: Call
    decision: Decision
    copy: AnswerCopy
    target: Target | None
    size_bytes: int
    time_s: float

    @property
    def pair(self) -> str:
        return self.call.pair

    def captured(self) -> Captured:
        """The content of its frame."""
        call, pieces, target, decision = self.call, self.copy.pieces, self.target, self.decision
        request, usage = call.request, call.usage
        return Captured(
            pair=call.pair,
            model=request.model,
            target="" if target is None else "@".join(filter(None, (target.source, target.revision))),
            fingerprint=call.fingerprint,
            request_id=call.context.request_id,
            key=call.context.caller.key_id,
            time_s=self.time_s,
            request_class=decision.request_class,
            arm=decision.arm,
            draft_length=decision.draft_length,
            temperature=request.temperature,
            top_p=request.top_p,
            endpoint=request.endpoint,
            request=request.raw,
            wire=tuple(map(_data_of, pieces)),
            stream=request.stream,
            token_ids=tuple(chain.from_iterable(map(_ids_of, pieces))),
            prompt_token_ids=tuple(chain.from_iterable(map(_prompt_ids_of, pieces))),
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            drafted=usage.drafted,
            accepted=usage.accepted,
            steps=usage.steps,
            rejected_at=usage.rejected_at,
        )
