"""How checkpoints get into a server's pod: volumes that it mounts, and what is downloaded before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving
from slipstream_core.manifest.sources import claim_folder, claim_of, hub_model, image_folder, image_of, located

from slipstream_operator.children.repository import sources_folder
from slipstream_operator.children.resources import preflight_resources, variables_of
from slipstream_operator.children.security import container_security

WEIGHTS_CONTAINER = "weights"

_VOLUME = "weights"
# A model that was downloaded and compared with the hub's checksums once is complete, also when the hub is not reached.
# What was cut off is resumed, on a shared volume also by another pod; `hf` locks each file.
_SCRIPT = """\
set -eu
fetch() {
  if [ -e "$3/.slipstream-complete" ]; then
    echo "$1@$2 is complete"
    return
  fi
  hf download "$1" --revision "$2" --local-dir "$3" --quiet
  hf cache verify "$1" --revision "$2" --local-dir "$3" --fail-on-missing-files --quiet
  touch "$3/.slipstream-complete"
}
"""
_SETTINGS = {
    "HOME": "/tmp",  # nosec B108 # a volume of the pod's own
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NO_COLOR": "1",
}


def weights_volumes(pair: ModelPair) -> list[dict[str, Any]]:
    """The volumes with checkpoints: that of the pair's storage, or an empty one for what is downloaded, and one for
    each claim and image that a source names."""
    storage = (pair.spec.serving or Serving()).storage
    is_filled = bool(_hub_sources(pair))
    volumes: list[dict[str, Any]] = []
    if storage is not None:
        claim = {"claimName": storage.claim} | ({} if is_filled else {"readOnly": True})
        volumes.append({"name": _VOLUME, "persistentVolumeClaim": claim})
    elif is_filled:
        volumes.append({"name": _VOLUME, "emptyDir": {}})
    for index, claim_name in enumerate(_claims(pair)):
        volumes.append({"name": f"claim-{index}", "persistentVolumeClaim": {"claimName": claim_name, "readOnly": True}})
    for index, reference in enumerate(_images(pair)):
        volumes.append({"name": f"image-{index}", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}})
    return volumes


def weights_mounts(pair: ModelPair) -> list[dict[str, Any]]:
    """The mounts of these volumes, all read-only."""
    storage = (pair.spec.serving or Serving()).storage
    mounts = []
    if storage is not None or _hub_sources(pair):
        mounts.append(_mount(_VOLUME, str(sources_folder(pair))))
    mounts += [_mount(f"claim-{index}", str(claim_folder(name))) for index, name in enumerate(_claims(pair))]
    mounts += [_mount(f"image-{index}", str(image_folder(name))) for index, name in enumerate(_images(pair))]
    return mounts


def weights_container(pair: ModelPair, *, image: str, scratch: dict[str, Any]) -> dict[str, Any] | None:
    """The container that downloads models from a hub, by the program `hf` of the server's image; None without such
    models. It gets the pair's own variables, such as HF_TOKEN, HF_ENDPOINT and those of proxies."""
    sources = _hub_sources(pair)
    if not sources:
        return None
    folder = sources_folder(pair)
    calls = "".join(
        f"fetch {model.repository} {model.revision} '{located(source, folder)}'\n" for source, model in sources.items()
    )
    variables = (pair.spec.serving or Serving()).env
    container: dict[str, Any] = {
        "name": WEIGHTS_CONTAINER,
        "image": image,
        "command": ["sh", "-c", (_SCRIPT + calls).replace("$", "$$")],  # Kubernetes expands $(NAME)
        "env": variables_of(variables, _SETTINGS),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [scratch, {"name": _VOLUME, "mountPath": str(folder)}],
    }
    if resources := preflight_resources(pair):
        container["resources"] = resources
    return container


def _hub_sources(pair: ModelPair) -> dict[str, Any]:
    return {source: model for source in _sources(pair) if (model := hub_model(source)) is not None}


def _claims(pair: ModelPair) -> list[str]:
    return sorted({claim for source in _sources(pair) if (claim := claim_of(source)) is not None})


def _images(pair: ModelPair) -> list[str]:
    return sorted({image for source in _sources(pair) if (image := image_of(source)) is not None})


def _sources(pair: ModelPair) -> Iterator[str]:
    for part in (pair.spec.target, pair.spec.draft):
        if part is not None:
            yield from (source for source in (part.source, part.tokenizer) if source is not None)


def _mount(volume: str, path: str) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, "readOnly": True}
