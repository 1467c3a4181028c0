"""Settings of the plugin. Only this module reads the environment."""

from __future__ import annotations

import os
from typing import Any, Literal

from vllm.platforms import current_platform

from slipstream_vllm.errors import UnsupportedServerError

Acceptance = Literal["equality", "rejection"]

TOKEN_VARIABLE = "SLIPSTREAM_VLLM_TOKEN"
ACCEPTANCE_VARIABLE = "SLIPSTREAM_VLLM_ACCEPTANCE"
_ACCEPTANCE_KEY = "slipstream_acceptance"


def control_token() -> str | None:
    """The bearer token of the control routes, or None."""
    return os.environ.get(TOKEN_VARIABLE) or None


def acceptance(vllm_config: Any) -> Acceptance:
    """This server's acceptance rule for draft tokens."""
    rule: Acceptance = vllm_config.additional_config[_ACCEPTANCE_KEY]
    return rule


def fix_acceptance(vllm_config: Any) -> None:
    """Read the rule once, into the configuration, because workers on other machines lack this process's environment.

    Raises: `UnsupportedServerError` for an unknown rule.
    """
    vllm_config.additional_config = {**vllm_config.additional_config, _ACCEPTANCE_KEY: _configured_acceptance()}


def _configured_acceptance() -> Acceptance:
    """The rule in the environment; by default `equality` on CPUs and `rejection` elsewhere."""
    value = os.environ.get(ACCEPTANCE_VARIABLE, "")
    if value == "equality" or (not value and current_platform.is_cpu()):
        return "equality"
    if value in ("", "rejection"):
        return "rejection"
    raise UnsupportedServerError(f"{ACCEPTANCE_VARIABLE} must be 'equality' or 'rejection', not {value!r}.")
