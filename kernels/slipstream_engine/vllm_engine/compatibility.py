"""Which releases of vLLM run inside Triton. Imports vLLM's package alone: its modules differ between releases."""

from __future__ import annotations

from slipstream_engine.errors import CheckpointError

TESTED_VERSIONS = ("0.32.0",)
"""The modules that build vLLM's server are not public: each of these ran the tests of the Triton model."""


def check_version() -> None:
    """Raise `CheckpointError` where vLLM is not there, or a release that was not tested."""
    tested = ", ".join(TESTED_VERSIONS)
    try:
        import vllm
    except ImportError as exc:
        raise CheckpointError(f"vLLM {tested} is not installed in the environment of Triton's stub: {exc}") from exc
    found = vllm.__version__.partition("+")[0]
    if found not in TESTED_VERSIONS:
        raise CheckpointError(
            f"slipstream_vllm was tested with vLLM {tested}, not with {found}: install {tested} in the environment of "
            "Triton's stub"
        )
