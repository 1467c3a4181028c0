"""The refusal of a restricted parameter that a key may not send."""

from __future__ import annotations

from slipstream_core.errors import Forbidden
from slipstream_core.parameter_names import suggestion
from slipstream_core.restricted_parameters import Restricted, RestrictedUse


def not_permitted(use: RestrictedUse) -> Forbidden:
    """The error with the name of the parameter, and with that of the permission."""
    message = f"This key may not send '{use.path}'"
    if use.parameter is None:
        message = f"{message}. {suggestion(use.path)}".rstrip()
    elif use.parameter is Restricted.UNKNOWN:
        message = f"{message}, an unknown parameter, without the permission '{use.parameter}'. {suggestion(use.path)}"
    else:
        message += f" without the permission '{use.parameter}'."
    return Forbidden(message.rstrip(), param=use.path)
