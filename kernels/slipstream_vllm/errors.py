"""Errors of the plugin.

    UnsupportedServer   the server cannot run with the plugin: version, configuration, missing hook

A bad request raises vLLM's own `VLLMValidationError`, which is a `ValueError` and becomes HTTP 400.
"""


class UnsupportedServer(RuntimeError):
    """The server cannot run with the plugin. The message is one sentence for the operator."""
