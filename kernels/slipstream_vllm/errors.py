"""Errors of the plugin.

UnsupportedServerError   the server cannot run with the plugin: version, configuration, missing hook
BadRequest               a field of the request has an invalid value; vLLM answers HTTP 400
"""

from vllm.exceptions import VLLMValidationError


class UnsupportedServerError(RuntimeError):
    """The server cannot run with the plugin. The message is one sentence for the operator."""


class BadRequest(VLLMValidationError, ValueError):
    """A field has an invalid value. `parameter` is the field's path; the message contains the path and the value.

    vLLM's class alone is not a `ValueError`, which is what callers of `AsyncLLM.generate` expect.
    """

    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message, parameter=parameter)  # type: ignore[call-arg]  # vLLM's class is untyped here
