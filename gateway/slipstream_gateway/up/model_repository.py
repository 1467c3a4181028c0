"""Triton's model repository for the pairs of a manifest: one model for each, from the one template.

The template is `deploy/model_repository`, which also runs as it is in NVIDIA's container; the wheel has a
copy of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipstream_gateway.errors import CommandError
from slipstream_gateway.manifest import ModelPair, triton_model_name
from slipstream_gateway.manifest.triton_model import EMBEDDED, engine_parameters, located, render_config

TEMPLATE_MODEL = "slipstream"
_PACKAGE = Path(__file__).parent.parent
_TEMPLATES = (_PACKAGE / "model_repository", _PACKAGE.parent.parent / "deploy" / "model_repository")


def template_repository() -> Path:
    """Where the template is: in the installed package, or in the source tree of an editable install."""
    for folder in _TEMPLATES:
        if (folder / TEMPLATE_MODEL / "config.pbtxt").is_file():
            return folder
    raise CommandError(f"this installation is incomplete: {_TEMPLATES[0]} is missing")


def write_repository(pairs: Sequence[ModelPair], *, manifest_folder: Path, folder: Path) -> Path:
    """Write one Triton model for each of `pairs` into `folder`, which must not exist, and return it.

    Raises:
        CommandError: a checkpoint folder is not there, or two pairs give one Triton model's name.
    """
    template = template_repository() / TEMPLATE_MODEL
    config = (template / "config.pbtxt").read_text(encoding="utf-8")
    sources = manifest_folder.resolve()
    for pair in pairs:
        name = triton_model_name(pair)
        model = folder / name
        if model.exists():
            raise CommandError(f"ModelPair/{pair.metadata.name}: another pair is Triton's model {name!r} already")
        parameters = engine_parameters(pair, sources)
        check_folders(pair, sources)
        shutil.copytree(template, model, ignore=shutil.ignore_patterns("__pycache__"))
        (model / "config.pbtxt").write_text(render_config(config, name, parameters), encoding="utf-8")
    return folder


def check_folders(pair: ModelPair, sources: Path) -> None:
    """Raises CommandError where a folder that `pair` names is not there, or not what it should be."""
    for field, source, needed in _named_folders(pair):
        folder = Path(located(source, sources))
        if not source.startswith(EMBEDDED) and not (folder / needed).is_file():
            what = f"there is no {needed} in" if folder.is_dir() else "there is no folder"
            raise CommandError(f"ModelPair/{pair.metadata.name}: spec.{field}: {what} {folder}")


def _named_folders(pair: ModelPair) -> Iterator[tuple[str, str, str]]:
    """(field, source, a file that has to be there) of each folder that the pair's spec names."""
    for name, part in (("target", pair.spec.target), ("draft", pair.spec.draft)):
        if part is not None and part.source is not None:
            yield f"{name}.source", part.source, "config.json"
        if part is not None and part.tokenizer is not None:
            yield f"{name}.tokenizer", part.tokenizer, "tokenizer.json"
