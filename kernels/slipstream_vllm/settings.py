"""Environment of the plugin: the only module that reads it."""

from __future__ import annotations

import os
from typing import Literal

from vllm.platforms import current_platform

from slipstream_vllm.errors import UnsupportedServerError

Acceptance = Literal["equality", "rejection"]

TOKEN_VARIABLE = "SLIPSTREAM_VLLM_TOKEN"
ACCEPTANCE_VARIABLE = "SLIPSTREAM_VLLM_ACCEPTANCE"


def control_token() -> str | None:
    """The bearer token of the control routes; None where it is not set."""
    return os.environ.get(TOKEN_VARIABLE) or None


def acceptance() -> Acceptance:
    """The rule by which draft tokens are accepted. Default: `equality` on CPUs, `rejection` elsewhere.

    Raises: `UnsupportedServerError` for another value.
    """
    value = os.environ.get(ACCEPTANCE_VARIABLE, "")
    if value == "equality" or (not value and current_platform.is_cpu()):
        return "equality"
    if value in ("", "rejection"):
        return "rejection"
    raise UnsupportedServerError(f"{ACCEPTANCE_VARIABLE} must be 'equality' or 'rejection', not {value!r}.")
