"""The model of a pair in Triton: the parameters of Slipstream's engine, the `config.pbtxt` as text, and the template of
the model repository, in the installed package or in the source tree of an editable install."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from slipstream_core.errors import CommandError
from slipstream_core.manifest.engines import SlipstreamEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.sources import EMBEDDED, located

# The layers are so small that a second thread would cost time.
EMBEDDED_THREADS = 1
APPLICATION = "application"
"""The parameter that names the application: `module:function` of a package beside Triton's stub."""
VLLM_APPLICATION = "slipstream_engine.vllm_engine.hosted:application"
_OWN_APPLICATION = "slipstream_engine.openai.hosted:application"
_TEMPLATE_MODEL = "slipstream"
_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "model_repository", _PACKAGE.parent.parent / "deploy" / "model_repository")
_NAME = re.compile(r'^name: ".*"$', re.MULTILINE)
_PARAMETER = re.compile(r"^(?:#.*\n)*parameters \{.*\}\n", re.MULTILINE)


def engine_parameters(pair: ModelPair, folder: PurePath) -> dict[str, str]:
    """The application and its engine's settings for `pair`, by name, in the form that the backend reads from
    `config.pbtxt`.

    Relative sources start at `folder` as Triton sees it: the manifest's folder, or the mount path of a cluster's
    volume. Raises TypeError for a pair that Slipstream's engine does not serve.
    """
    engine, target, draft = pair.spec.engine, pair.spec.target, pair.spec.draft
    if not isinstance(engine, SlipstreamEngine) or target is None or draft is None:
        raise TypeError(f"ModelPair/{pair.metadata.name} is not served by Slipstream's engine")
    parameters = {
        APPLICATION: _OWN_APPLICATION,
        "target": located(target.source, folder),
        "draft_kind": draft.kind,
        "max_draft_tokens": str(pair.spec.max_draft_tokens),
        "max_slots": str(engine.max_concurrency),
        "device": engine.device,
        "dtype": engine.dtype,
    }
    optional = {"tokenizer": target.tokenizer, "draft": draft.source, "draft_tokenizer": draft.tokenizer}
    for name, source in optional.items():
        if source is not None:
            parameters[name] = located(source, folder)
    if draft.alternatives:
        parameters["more_drafts"] = "\n".join(located(source, folder) for source in draft.alternatives)
        parameters["draft_names"] = "\n".join(map(_name_of, (draft.source or "", *draft.alternatives)))
    if draft.candidates is not None:
        parameters["candidates"] = located(draft.candidates, folder)
    if engine.context_tokens is not None:
        parameters["context_tokens"] = str(engine.context_tokens)
    if target.source.startswith(EMBEDDED):
        parameters["threads"] = str(EMBEDDED_THREADS)
    return parameters


def _name_of(source: str) -> str:
    """The last part of a draft's source, without its scheme and its revision or tag."""
    path = source.rpartition("://")[2].rstrip("/")
    return path.rpartition("/")[2].partition("@")[0] or path


def render_config(template: str, name: str, parameters: Mapping[str, str]) -> str:
    """The `config.pbtxt` of the model `name`: `template` with its name and all its parameters replaced."""
    body = _NAME.sub(lambda _: f"name: {_quote(name)}", _PARAMETER.sub("", template), count=1)
    lines = (
        f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}\n"
        for key, value in parameters.items()
    )
    return body + "".join(lines)


def _quote(text: str) -> str:
    """`text` as a string of protobuf's text format."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def template_model() -> Path:
    """The folder of the template. Raises `CommandError` in an incomplete installation."""
    for folder in _PLACES:
        if (folder / _TEMPLATE_MODEL / "config.pbtxt").is_file():
            return folder / _TEMPLATE_MODEL
    raise CommandError(f"this installation is incomplete: {_PLACES[0]} is missing")
