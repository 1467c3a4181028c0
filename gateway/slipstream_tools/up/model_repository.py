"""Triton's model repository for the pairs of a manifest: one model per pair, from its engine's template.

The templates are in `deploy/model_repository`, and the wheel contains a copy of them.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.manifest import ModelPair, VllmEngine, triton_model_name
from slipstream_core.manifest.triton_model import engine_parameters, render_config, template_repository

from slipstream_tools.up.checkpoint_folders import check_folders
from slipstream_tools.up.triton_vllm import ENVIRONMENT_PARAMETER, write_stub_environment
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_pairs import launch_of

TEMPLATE_MODEL, VLLM_TEMPLATE_MODEL = "slipstream", "slipstream_vllm"


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
    templates = template_repository()
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
            template = templates / VLLM_TEMPLATE_MODEL
        else:
            parameters = engine_parameters(pair, manifest_folder.resolve())
            check_folders(pair, manifest_folder.resolve())
            template = templates / TEMPLATE_MODEL
        shutil.copytree(template, model, ignore=shutil.ignore_patterns("__pycache__"))
        config = (template / "config.pbtxt").read_text(encoding="utf-8")
        (model / "config.pbtxt").write_text(render_config(config, name, parameters), encoding="utf-8")
    return folder


def _vllm_parameters(
    pair: ModelPair, manifest_folder: Path, arguments: Sequence[str], environment: Path
) -> Mapping[str, str]:
    launch = launch_of(pair, manifest_folder=manifest_folder, extra=arguments)
    return {"vllm_args": shlex.join(launch.arguments()), ENVIRONMENT_PARAMETER: str(environment)}
