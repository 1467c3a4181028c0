"""What vLLM is started with: its own command line."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec

from slipstream_engine.settings import EMBEDDED_SCHEME, resolve_source


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM engine.

    `vllm_args` are the options of `vllm serve`, quoted as in a shell, `--scheduler-cls slipstream_vllm.Scheduler` among
    them where it speculates. `embedded:target` and `embedded:draft` in them stand for the folders of the pair that
    comes with this package. `max_waiting` requests may queue beyond those that decode together (`--max-num-seqs`).
    """

    vllm_args: str
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] = 64


def command_line(settings: VllmSettings, name: str) -> list[str]:
    """The options that vLLM gets: those of `settings`, and what Triton's contract needs. Of an option that is there
    twice the last counts. `name` is what OpenAI requests call the model.

    Raises:
        CheckpointError: there is no such embedded checkpoint.
    """
    given = [_located(option) for option in shlex.split(settings.vllm_args)]
    # In detail, as the contract tells at which position of a draft it was rejected.
    return [*given, "--served-model-name", name, "--per-request-spec-decode-metrics", "detailed"]


def _located(option: str) -> str:
    for name in ("target", "draft"):
        if (source := f"{EMBEDDED_SCHEME}:{name}") in option:
            option = option.replace(source, str(resolve_source(source)))
    return option
