"""The files that a server loads: its Triton model repository and its sources, with hashes of both in the annotations of
its pod. A changed hash replaces the servers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

import msgspec
from slipstream_core.manifest.adapters import adapters_of
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.table import triton_model_name
from slipstream_core.manifest.triton_model import engine_parameters, render_config, template_model

from slipstream_operator.children.identity import Owner, child
from slipstream_operator.types import KubeObject

REPOSITORY = PurePosixPath("/etc/slipstream/model_repository")
VOLUME = "model"
CONFIG = "config.pbtxt"
CODE = "model.py"
WITHOUT_STORAGE = PurePosixPath("/models")
"""The root of relative sources without a volume: an image may have its checkpoints there."""

REPOSITORY_ANNOTATION = "slipstream.dev/repository-hash"
WEIGHTS_ANNOTATION = "slipstream.dev/weights-hash"

_HASH_CHARS = 16


def repository_config_map(owner: Owner) -> KubeObject:
    """The two files of the pair's model."""
    config, code = _template()
    parameters = {
        **engine_parameters(owner.pair, sources_folder(owner.pair)),
        # If the draft does not match, the target is served alone, and the pair's status has the reason.
        "on_draft_mismatch": "plain",
    }
    data = {CONFIG: render_config(config, triton_model_name(owner.pair), parameters), CODE: code}
    return child("v1", "ConfigMap", owner, data=data)


def repository_volume(name: str) -> KubeObject:
    """The volume with the model's files; `name` is the ConfigMap's."""
    items = [{"key": CONFIG, "path": CONFIG}, {"key": CODE, "path": f"1/{CODE}"}]
    return {"name": VOLUME, "configMap": {"name": name, "items": items}}


def repository_mount(pair: ModelPair) -> KubeObject:
    """The mount of the volume at the model's folder. A mount as the whole repository would add the hidden folders that
    Kubernetes uses to replace a volume's content, and Triton exits if it cannot load a model."""
    return {"name": VOLUME, "mountPath": str(REPOSITORY / triton_model_name(pair)), "readOnly": True}


def sources_folder(pair: ModelPair) -> PurePosixPath:
    """The root of relative sources in a server."""
    storage = pair.serving.storage
    return WITHOUT_STORAGE if storage is None else PurePosixPath(storage.mount_path)


def sources_of(pair: ModelPair) -> Iterator[str]:
    """The sources that `pair` names."""
    for part in (pair.spec.target, pair.spec.draft):
        if part is not None:
            yield from (source for source in (part.source, part.tokenizer) if source is not None)
    yield from pair.spec.draft.alternatives if pair.spec.draft is not None else ()
    yield from (adapter.source for adapter in adapters_of(pair) if adapter.source is not None)


def template_annotations(pair: ModelPair, repository: Mapping[str, str] | None) -> dict[str, str]:
    """The annotations of the pod template. `repository` is the ConfigMap's data, which running servers do not read
    again; None without one."""
    of_repository = {} if repository is None else {REPOSITORY_ANNOTATION: _digest(_encode(repository))}
    return {**of_repository, WEIGHTS_ANNOTATION: weights_hash(pair)}


def weights_hash(pair: ModelPair) -> str:
    """The hash of the sources, tokenizers and revisions of `pair`. No other part of a pod contains the revision."""
    encoded = _encode([pair.spec.target, pair.spec.draft])
    # Without fields at their defaults that earlier versions did not have: an upgrade must not replace all servers.
    return _digest(encoded.replace(b',"alternatives":[]', b"").replace(b',"candidates":null', b""))


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _digest(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:_HASH_CHARS]


@cache
def _template() -> tuple[str, str]:
    """The texts of `config.pbtxt` and `model.py`, the same for every model."""
    model = template_model()
    return (model / CONFIG).read_text(encoding="utf-8"), (model / "1" / CODE).read_text(encoding="utf-8")
