"""Supported releases of vLLM inside Triton. Imports only the package `vllm`, whose modules differ between releases."""

from __future__ import annotations

from slipstream_engine.errors import CheckpointError

TESTED_VERSIONS = ("0.32.0",)
"""The modules that build vLLM's server are not public. The tests of the Triton model passed with these releases."""


def check_version() -> None:
    """Raise `CheckpointError` if vLLM is missing or its release was not tested."""
    tested = ", ".join(TESTED_VERSIONS)
    try:
        import vllm
    except ImportError as exc:
        raise CheckpointError(f"vLLM {tested} is not installed in the environment of Triton's stub: {exc}") from exc
    found = vllm.__version__.partition("+")[0]
    if found not in TESTED_VERSIONS:
        raise CheckpointError(
            f"Slipstream was tested with vLLM {tested}, not with {found}: install {tested} in the environment of "
            "Triton's stub"
        )
