"""Triton's model repository for the pairs of a manifest: one model per pair, from the template.

The template is in `deploy/model_repository`, and the wheel contains a copy of it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.manifest import ModelPair, VllmEngine, triton_model_name
from slipstream_core.manifest.triton_model import (
    APPLICATION,
    VLLM_APPLICATION,
    engine_parameters,
    render_config,
    template_model,
)

from slipstream_tools.up.checkpoint_folders import check_folders
from slipstream_tools.up.triton_vllm import ENVIRONMENT_PARAMETER, write_stub_environment
from slipstream_tools.up.vllm_environment import NICE, VllmInstall
from slipstream_tools.up.vllm_pairs import launch_of


def write_repository(
    pairs: Sequence[ModelPair],
    *,
    manifest_folder: Path,
    folder: Path,
    vllm: VllmInstall | None = None,
    vllm_arguments: Sequence[str] = (),
) -> Path:
    """Writes one Triton model for each of `pairs` into `folder`, which must not exist, and returns it.

    `vllm` serves the pairs of that kind, with `vllm_arguments` at the end of its command line; its stub's environment
    is beside `folder`.

    Raises:
        CommandError: a checkpoint folder is missing, or two pairs have the same Triton model name.
    """
    template = template_model()
    config = (template / "config.pbtxt").read_text(encoding="utf-8")
    environment = None
    for pair in pairs:
        name = triton_model_name(pair)
        model = folder / name
        if model.exists():
            raise CommandError(f"ModelPair/{pair.metadata.name}: another pair already has the Triton model {name!r}")
        if isinstance(pair.spec.engine, VllmEngine):
            if vllm is None:
                raise CommandError(f"ModelPair/{pair.metadata.name}: spec.engine: vLLM is not installed here")
            environment = environment or write_stub_environment(vllm, folder.parent / "vllm_stub")
            parameters = _vllm_parameters(pair, manifest_folder, vllm_arguments, environment)
        else:
            parameters = engine_parameters(pair, manifest_folder.resolve())
            check_folders(pair, manifest_folder.resolve())
        shutil.copytree(template, model, ignore=shutil.ignore_patterns("__pycache__"))
        (model / "config.pbtxt").write_text(render_config(config, name, parameters), encoding="utf-8")
    return folder


def _vllm_parameters(
    pair: ModelPair, manifest_folder: Path, arguments: Sequence[str], environment: Path
) -> Mapping[str, str]:
    launch = launch_of(pair, manifest_folder=manifest_folder, extra=arguments)
    return {
        APPLICATION: VLLM_APPLICATION,
        "vllm_args": shlex.join(launch.arguments()),
        "nice": str(NICE),
        ENVIRONMENT_PARAMETER: str(environment),
    }
