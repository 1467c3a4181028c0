"""The launch settings of the vLLM server for a pair of a manifest."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.installation import how_to_install
from slipstream_core.manifest import ModelPair, RoutingTable, VllmEngine
from slipstream_core.manifest.sources import EMBEDDED, located
from slipstream_core.manifest.triton_model import EMBEDDED_THREADS
from slipstream_core.manifest.vllm_command import Speculation, adapter_arguments, engine_arguments, speculation_of

from slipstream_tools.up.checkpoint_folders import check_folders
from slipstream_tools.up.vllm_server import VllmLaunch

_ENGINE_PACKAGE = "slipstream_engine"
_MOST_HEADER = 100_000_000  # bytes, the format's own limit


def vllm_pairs(table: RoutingTable) -> list[ModelPair]:
    """The pairs that need a vLLM server on this machine: of kind vllm, served by vLLM's own HTTP server, without an
    address."""
    return [route.pair for route in table.routes.values() if _is_local(route.pair)]


def needs_vllm(table: RoutingTable) -> bool:
    """Whether a pair needs vLLM on this machine, possibly inside Triton."""
    engines = (route.pair.spec.engine for route in table.routes.values())
    return any(isinstance(engine, VllmEngine) and not engine.endpoints for engine in engines)


def _is_local(pair: ModelPair) -> bool:
    engine = pair.spec.engine
    return isinstance(engine, VllmEngine) and engine.serving == "openai" and not engine.endpoints


def launch_of(pair: ModelPair, *, manifest_folder: Path, extra: Sequence[str] = ()) -> VllmLaunch:
    """The launch settings of the server of `pair`. `extra` goes at the end of vLLM's command line, where the last value
    of an argument applies.

    Raises:
        CommandError: a checkpoint folder is missing.
    """
    folder = manifest_folder.resolve()
    check_folders(pair, folder)
    spec, engine = pair.spec, pair.spec.engine
    if spec.target is None or not isinstance(engine, VllmEngine):
        raise CommandError(f"ModelPair/{pair.metadata.name}: spec.target: is required to start vLLM")
    if spec.target.tokenizer is not None:
        extra = ("--tokenizer", _path(spec.target.tokenizer, folder), *extra)
    return VllmLaunch(
        model=_path(spec.target.source, folder),
        served_name=engine.model or spec.model,
        speculation=_speculation(pair, folder),
        threads=EMBEDDED_THREADS if spec.target.source.startswith(EMBEDDED) else None,
        extra=(*adapter_arguments(pair, folder), *engine_arguments(engine), *extra),
    )


def _speculation(pair: ModelPair, folder: Path) -> Speculation | None:
    """As `speculation_of`, with sources of packages, and EAGLE heads that the pair calls a model."""
    found, draft = speculation_of(pair, folder), pair.spec.draft
    if found is None or draft is None or draft.source is None:
        return found
    path = _path(draft.source, folder)
    is_head = draft.kind == "model" and _is_eagle_head(Path(path))
    return msgspec.structs.replace(found, draft=path, method="eagle" if is_head else found.method)


def _is_eagle_head(folder: Path) -> bool:
    """Whether the header of the checkpoint's file, a length and JSON, names the tensor that only EAGLE heads have. vLLM
    has to be told, and says itself what is wrong with a file."""
    try:
        with (folder / "model.safetensors").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return b'"fc.weight"' in file.read(min(length, _MOST_HEADER))
    except OSError:
        return False


def _path(source: str, folder: Path) -> str:
    """The folder of a source, also of `embedded:target`, which is in a package that the gateway never imports."""
    if not source.startswith(EMBEDDED):
        return located(source, folder)
    spec = importlib.util.find_spec(_ENGINE_PACKAGE)
    if spec is None or spec.origin is None:
        raise CommandError(f"{source}: the package {_ENGINE_PACKAGE} is not installed; {how_to_install('embedded')}")
    return str(Path(spec.origin).parent / "embedded" / source.removeprefix(EMBEDDED))
