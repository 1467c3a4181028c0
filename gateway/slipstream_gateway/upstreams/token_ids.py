"""Token ids of an answer in OpenAI's form: requested from the engine, read, and removed from the client's bytes.

With `return_token_ids` an answer has ids, and chat streams get an event for each step that has no text yet. The fields
and those events are removed again. Quotes inside a JSON string are escaped, so only real keys match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.sse import split_events

FIELD = "return_token_ids"
_ON: Mapping[str, msgspec.Raw] = {FIELD: msgspec.Raw(b"true")}
_OFF: Mapping[str, msgspec.Raw] = {}
_IDS = re.compile(rb',\s*"(prompt_)?token_ids"\s*:\s*\[([\d,\s]*)\]')  # never the first field
_WITHOUT_TEXT = re.compile(rb'"delta"\s*:\s*\{\s*\}\s*,\s*"logprobs"\s*:\s*null\s*,\s*"finish_reason"\s*:\s*null')


def requests_ids(job: Job) -> bool:
    """Whether the gateway requests ids: only if the client does not set the field itself."""
    return job.token_ids and FIELD not in job.request.features


def request_fields(job: Job) -> Mapping[str, msgspec.Raw]:
    """The fields that `job` adds to the body of its request."""
    return _ON if requests_ids(job) else _OFF


class TokenIds:
    """Removes ids from one answer of one choice: `take` for each block, then `pop` for the new ids."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._answer: list[int] = []
        self._prompt: list[int] = []

    def take(self, data: bytes) -> bytes:
        """`data` for the client. Of a stream, whole events."""
        if b"token_ids" not in data:
            return data
        if not self._stream:
            return _IDS.sub(self._take, data)
        return b"".join([self._event(event) for event in split_events(data)])

    def pop(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of the answer and of the prompt since the last call."""
        found = tuple(self._answer), tuple(self._prompt)
        self._answer.clear()
        self._prompt.clear()
        return found

    def _event(self, event: bytes) -> bytes:
        taken = _IDS.sub(self._take, event)
        return b"" if taken != event and _WITHOUT_TEXT.search(taken) is not None else taken

    def _take(self, match: re.Match[bytes]) -> bytes:
        of_prompt, ids = match.groups()
        (self._prompt if of_prompt else self._answer).extend(map(int, ids.split(b",") if ids.strip() else ()))
        return b""
