"""The usage object of an answer for the client, with the drafts that another engine reports elsewhere: in OpenAI's
fields, and Slipstream's own fields beside them.
"""

from __future__ import annotations

import msgspec
from slipstream_core.types import Endpoint

from slipstream_gateway.upstreams.base import Job, Usage

_NULL = b"null"


class _Seeded(msgspec.Struct):
    seed: int | None = None


_decode_seed = msgspec.json.Decoder(_Seeded).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def seed_of(job: Job) -> int | None:
    """The seed that the server gets: the client's, or the gateway's where that costs nothing. Several prompts of one
    request would share it, so that equal ones had equal answers."""
    if job.seeded and job.request.prompts == 1:
        return job.request.seed
    return _decode_seed(job.request.raw).seed


def client_usage(raw: msgspec.Raw, usage: Usage, job: Job) -> msgspec.Raw:
    """The server's usage object with the drafts in OpenAI's fields, and Slipstream's beside them."""
    usage_fields = _decode_raw(raw)
    name = "output_tokens_details" if job.request.endpoint is Endpoint.RESPONSES else "completion_tokens_details"
    details = bytes(usage_fields.get(name, _NULL))
    known = {} if details == _NULL else _decode_raw(details)
    known["accepted_prediction_tokens"] = msgspec.Raw(b"%d" % usage.accepted)
    known["rejected_prediction_tokens"] = msgspec.Raw(b"%d" % (usage.drafted - usage.accepted))
    usage_fields[name] = msgspec.Raw(_encode(known))
    own = {
        "seed": seed_of(job),
        "draft_length": job.draft_length,
        "target_steps": usage.steps,
        "rejected_at": usage.rejected_at,
        "engine_seconds": usage.engine_s,
        "draft": usage.draft or None,
        "resumed": job.committed.resumed if job.committed is not None else (),
    }
    usage_fields["slipstream"] = msgspec.Raw(_encode(own))
    return msgspec.Raw(_encode(usage_fields))
