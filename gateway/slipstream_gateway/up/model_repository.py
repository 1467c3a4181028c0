"""Triton's model repository for the pairs of a manifest: one model for each, from the one template.

The template is `deploy/model_repository`, which also runs as it is in NVIDIA's container; the wheel has a
copy of it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream_gateway.errors import CommandError
from slipstream_gateway.manifest import ModelPair, SlipstreamEngine, resolve_source, triton_model_name

TEMPLATE_MODEL = "slipstream"
EMBEDDED = "embedded:"
# Its layers are so small that a second thread costs more than it brings.
EMBEDDED_THREADS = 1
_PACKAGE = Path(__file__).parent.parent
_TEMPLATES = (_PACKAGE / "model_repository", _PACKAGE.parent.parent / "deploy" / "model_repository")
_NAME = re.compile(r'^name: ".*"$', re.MULTILINE)
_PARAMETER = re.compile(r"^(?:#.*\n)*parameters \{.*\}\n", re.MULTILINE)


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
    for pair in pairs:
        name = triton_model_name(pair)
        model = folder / name
        if model.exists():
            raise CommandError(f"ModelPair/{pair.metadata.name}: another pair is Triton's model {name!r} already")
        shutil.copytree(template, model, ignore=shutil.ignore_patterns("__pycache__"))
        parameters = engine_parameters(pair, manifest_folder)
        (model / "config.pbtxt").write_text(_render(config, name, parameters), encoding="utf-8")
    return folder


def engine_parameters(pair: ModelPair, manifest_folder: Path) -> dict[str, str]:
    """What the backend is told of `pair`: the engine's settings by name.

    Raises:
        CommandError: a checkpoint folder is not there.
    """
    engine, target, draft = pair.spec.engine, pair.spec.target, pair.spec.draft
    if not isinstance(engine, SlipstreamEngine) or target is None or draft is None:
        raise TypeError(f"ModelPair/{pair.metadata.name} is not served by Slipstream's engine")
    parameters = {
        "target": _source(pair, "target", target.source, manifest_folder),
        "draft_kind": draft.kind,
        "max_draft_tokens": str(pair.spec.max_draft_tokens),
        "max_slots": str(engine.max_concurrency),
        "device": engine.device,
        "dtype": engine.dtype,
    }
    if draft.source is not None:
        parameters["draft"] = _source(pair, "draft", draft.source, manifest_folder)
    if engine.context_tokens is not None:
        parameters["context_tokens"] = str(engine.context_tokens)
    if target.source.startswith(EMBEDDED):
        parameters["threads"] = str(EMBEDDED_THREADS)
    return parameters


def _source(pair: ModelPair, field: str, source: str, manifest_folder: Path) -> str:
    resolved = resolve_source(source, manifest_folder)
    if not resolved.startswith(EMBEDDED) and not (Path(resolved) / "config.json").is_file():
        what = "there is no config.json in" if Path(resolved).is_dir() else "there is no folder"
        raise CommandError(f"ModelPair/{pair.metadata.name}: spec.{field}.source: {what} {resolved}")
    return resolved


def _render(template: str, name: str, parameters: Mapping[str, str]) -> str:
    body = _NAME.sub(lambda _: f"name: {_quote(name)}", _PARAMETER.sub("", template), count=1)
    lines = (
        f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}\n"
        for key, value in parameters.items()
    )
    return body + "".join(lines)


def _quote(text: str) -> str:
    """`text` as a string of protobuf's text format."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
