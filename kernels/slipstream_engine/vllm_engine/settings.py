"""Settings of a vLLM engine: mainly vLLM's own command line."""

from __future__ import annotations

import shlex

import msgspec

from slipstream_engine.settings import EMBEDDED_SCHEME, resolve_source


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM engine.

    `vllm_args` are the options of `vllm serve`, quoted as in a shell. A server that speculates needs
    `--scheduler-cls slipstream_vllm.Scheduler`. `embedded:target` and `embedded:draft` are replaced by the folders of
    the pair in this package. `nice` lowers the priority of vLLM's threads and processes.
    """

    vllm_args: str
    nice: int = 0


def command_line(settings: VllmSettings, name: str) -> list[str]:
    """vLLM's options: those of `settings`, then those that the Triton model requires. The last of repeated options
    takes effect. `name` is the model name in OpenAI requests.

    Raises:
        CheckpointError: the embedded checkpoint does not exist.
    """
    given = [_located(option) for option in shlex.split(settings.vllm_args)]
    # "detailed", because the gateway counts rejections by their positions.
    return [*given, "--served-model-name", name, "--per-request-spec-decode-metrics", "detailed"]


def _located(option: str) -> str:
    for name in ("target", "draft"):
        if (source := f"{EMBEDDED_SCHEME}:{name}") in option:
            option = option.replace(source, str(resolve_source(source)))
    return option
