"""Converts vLLM's internal request ids to the ids in responses.

internal id                       client's id     made by
chatcmpl-A-1f2e3d4c               chatcmpl-A      chat; vLLM appends eight random characters
1_chatcmpl-A-1f2e3d4c             chatcmpl-A      chat with n = 2, second choice
cmpl-A-0-1f2e3d4c                 cmpl-A          completions, first prompt
resp_A_0-1f2e3d4c                 resp_A          responses, first turn of its tool loop
anything-1f2e3d4c                 anything        `AsyncLLM.generate(request_id="anything")`
"""

from __future__ import annotations

import re

import vllm.envs as envs

_SERVED = re.compile(r"(?:\d+_)?(?:(chatcmpl-.+)|(cmpl-.+)-\d+|(resp_.+)_\d+)")


def client_id(internal_id: str) -> str:
    """The id in the response to the request with this internal id."""
    external = internal_id if envs.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION else internal_id.rpartition("-")[0]
    served = _SERVED.fullmatch(external)
    if served is None:
        return external
    return next(part for part in served.groups() if part is not None)
