"""Features of the official `openai` client, each as one call that works against a server and through the gateway alike.

`docs/reference/features.md` is made from them. The tests `test_openai_features.py` (vLLM) and
`test_features_by_engine.py` (the others) run them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import openai


class Outcome(Enum):
    """How the result through the gateway compares with the one that vLLM gives directly. The value is the cell of the
    documentation's table."""

    SAME = "yes"
    SERVER_ERROR = "yes: the server's own error"
    FROM_PLAIN_POOL = "by the `plain` pool"
    OWN_ERROR = "the gateway's own error"
    OWN_ANSWER = "the gateway's own answer"


class Target(NamedTuple):
    """Where a feature is tried: a client, and the model's name there."""

    client: openai.OpenAI
    model: str


class Feature(NamedTuple):
    """One row of the table. `run` returns what the client made of the answers, or raises what it raised.

    `vllm` is what to expect on both arms of one pool of vLLM; `param` is the field that an error of the gateway's own
    names. `own_refusal` is the field that an error of Slipstream's engine names.
    """

    area: str
    name: str
    run: Callable[[Target], Any]
    vllm: Outcome = Outcome.SAME
    note: str = ""
    param: str | None = None
    own_refusal: str | None = None


# A prompt that the embedded pair has much to say to; for one model, drafts of the other are often right there.
CALL = "Summarize the call."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
