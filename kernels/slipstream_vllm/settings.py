"""Settings of the plugin. Only this module reads the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast, get_args

import vllm
from vllm.platforms import current_platform

from slipstream_vllm.class_file import ClassFile
from slipstream_vllm.classes import ClassFileError
from slipstream_vllm.errors import UnsupportedServerError

Acceptance = Literal["equality", "rejection", "synthetic"]
"""`synthetic` is for benchmarks: drafts are accepted at random, and answers are not the target's."""

TOKEN_VARIABLE = "SLIPSTREAM_VLLM_TOKEN"
ACCEPTANCE_VARIABLE = "SLIPSTREAM_VLLM_ACCEPTANCE"
CLASSES_VARIABLE = "SLIPSTREAM_VLLM_CLASSES"
RUST_VARIABLE = "VLLM_USE_RUST_FRONTEND"
HYBRID_KEY = "slipstream_hybrid"
_ACCEPTANCE_KEY = "slipstream_acceptance"
_V2_TESTED = (0, 32)  # no other release's V2 runner starts on CPUs, where it is tested


def control_token() -> str | None:
    """The bearer token of the control routes, or None."""
    return os.environ.get(TOKEN_VARIABLE) or None


def class_file(vllm_config: Any, report: Callable[[str], object] = lambda message: None) -> ClassFile | None:
    """The file of classes, or None without one. `report` gets the problems of later versions.

    Raises: `UnsupportedServerError` if the file is broken.
    """
    path = os.environ.get(CLASSES_VARIABLE)
    if not path:
        return None
    try:
        return ClassFile(Path(path), vllm_config.num_speculative_tokens, report)
    except ClassFileError as error:
        raise UnsupportedServerError(f"{CLASSES_VARIABLE}={path}: {error}") from None  # one error in the log


def uses_rust_frontend() -> bool:
    """Whether vLLM serves HTTP by its Rust program, which loads no plugins."""
    return os.environ.get(RUST_VARIABLE, "0") not in ("", "0")


def acceptance(vllm_config: Any) -> Acceptance:
    """This server's acceptance rule for draft tokens."""
    rule: Acceptance = vllm_config.additional_config[_ACCEPTANCE_KEY]
    return rule


def fix_acceptance(vllm_config: Any) -> None:
    """Read the rule once, into the configuration, because workers on other machines lack this process's environment.

    Raises: `UnsupportedServerError` for an unknown rule.
    """
    rule = _configured_acceptance() or _default_acceptance(vllm_config)
    vllm_config.additional_config = {**vllm_config.additional_config, _ACCEPTANCE_KEY: rule}


def is_hybrid(vllm_config: Any) -> bool:
    """Whether requests verify copies of their own text where these are likelier than the drafter's tokens.

    Raises: `UnsupportedServerError` for a value that is no boolean.
    """
    value = vllm_config.additional_config.get(HYBRID_KEY, False)
    if not isinstance(value, bool):
        raise UnsupportedServerError(f"additional_config.{HYBRID_KEY} is {value!r}; true or false is required.")
    return value


def allocates(vllm_config: Any) -> bool:
    """Whether the plugin decides how many draft tokens of adaptive requests a step verifies. With adaptive verification
    vLLM's workers do, by the confidence of each draft."""
    return not getattr(vllm_config.speculative_config, "enable_adaptive_verification", False)


def ranks_in_step(vllm_config: Any) -> bool:
    """Whether the ranks of data parallelism make every pass together, because they share experts. They deadlock if one
    skips a pass of the drafter. Ranks of a dense model are engines of their own, with a size of 1."""
    return bool(vllm_config.parallel_config.data_parallel_size > 1)


def extends_v2() -> bool:
    """Whether this vLLM has the V2 runner that `acceptance_v2` extends, and that truncates drafts: since 0.32."""
    return _release() >= (0, 32)


def skips_draft_passes() -> bool:
    """Whether `draft_passes_v2` was tested with the V2 runner of this vLLM."""
    return _release() == _V2_TESTED


def _release() -> tuple[int, int]:
    major, minor, *_ = vllm.__version__.split(".")
    return int(major), int(minor)


def _configured_acceptance() -> Acceptance | None:
    """The rule in the environment, or None."""
    value = os.environ.get(ACCEPTANCE_VARIABLE, "")
    if value == "":
        return None
    if value in get_args(Acceptance):
        return cast(Acceptance, value)
    raise UnsupportedServerError(f"{ACCEPTANCE_VARIABLE} must be 'equality' or 'rejection', not {value!r}.")


def _default_acceptance(vllm_config: Any) -> Acceptance:
    """`equality` on CPUs, where vLLM's V1 sampler is broken, and on the V2 runner of the tested release,
    where it costs nothing.

    A configuration that chooses the verification of vLLM, or drafts for it, keeps `rejection`.
    """
    speculative = vllm_config.speculative_config
    chosen = speculative is not None and (
        speculative.rejection_sample_method != "standard" or speculative.draft_sample_method != "greedy"
    )
    if vllm_config.use_v2_model_runner:
        return "rejection" if chosen or _release() != _V2_TESTED else "equality"
    return "equality" if current_platform.is_cpu() else "rejection"
