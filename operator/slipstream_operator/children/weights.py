"""How checkpoints get into a server's pod: volumes that it mounts, and what is downloaded before it starts."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving
from slipstream_core.manifest.sources import (
    STORE,
    claim_folder,
    claim_of,
    hub_model,
    image_folder,
    image_of,
    located,
)

from slipstream_operator.children.preflight import REPORT
from slipstream_operator.children.repository import sources_folder, sources_of
from slipstream_operator.children.resources import preflight_resources, variables_of
from slipstream_operator.children.security import container_security

WEIGHTS_CONTAINER = "weights"

_VOLUME = "weights"
# A model that was downloaded and compared with the source's checksums once is complete, also when the source is not
# reached. What was cut off is resumed, on a shared volume also by another pod: both programs lock their files. The
# container's message has the contents of stores; a failure leaves it to the end of the log.
_SCRIPT = """\
set -eu
contents=
fetch() {
  if [ -e "$3/.slipstream-complete" ]; then
    echo "$1@$2 is complete"
    return
  fi
  hf download "$1" --revision "$2" --local-dir "$3" --quiet
  hf cache verify "$1" --revision "$2" --local-dir "$3" --fail-on-missing-files --quiet
  touch "$3/.slipstream-complete"
}
fetch_s3() {
  content=$(python3 /opt/slipstream/s3_download.py "$1" "$2")
  contents="$contents$content
"
}
"""
_REPORT = f'printf %s "$contents" > {REPORT}\n'
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
    is_filled = bool(_downloads(pair))
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
    if storage is not None or _downloads(pair):
        mounts.append(_mount(_VOLUME, str(sources_folder(pair))))
    mounts += [_mount(f"claim-{index}", str(claim_folder(name))) for index, name in enumerate(_claims(pair))]
    mounts += [_mount(f"image-{index}", str(image_folder(name))) for index, name in enumerate(_images(pair))]
    return mounts


def weights_container(pair: ModelPair, *, image: str, scratch: dict[str, Any]) -> dict[str, Any] | None:
    """The container that downloads models from a hub, by the program `hf` of the server's image, and from a store, by
    `deploy/docker/s3_download.py` in it; None without such models. It gets the pair's own variables, such as HF_TOKEN,
    AWS_ENDPOINT_URL and those of proxies."""
    calls = _downloads(pair)
    if not calls:
        return None
    folder = sources_folder(pair)
    variables = (pair.spec.serving or Serving()).env
    container: dict[str, Any] = {
        "name": WEIGHTS_CONTAINER,
        "image": image,
        "command": ["sh", "-c", "".join([_SCRIPT, *calls]).replace("$", "$$")],  # Kubernetes expands $(NAME)
        "env": variables_of(variables, _SETTINGS),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [scratch, {"name": _VOLUME, "mountPath": str(folder)}],
    }
    if resources := preflight_resources(pair):
        container["resources"] = resources
    return container


def _downloads(pair: ModelPair) -> list[str]:
    """The script's lines with the calls of its functions, one for each source."""
    folder = sources_folder(pair)
    calls = {}
    for source in sources_of(pair):
        if (model := hub_model(source)) is not None:
            calls[source] = f"fetch {model.repository} {model.revision} '{located(source, folder)}'\n"
        elif source.startswith(STORE):
            calls[source] = f"fetch_s3 {source} '{located(source, folder)}'\n"
    has_store = any(source.startswith(STORE) for source in calls)
    return [*calls.values(), *((_REPORT,) if has_store else ())]


def _claims(pair: ModelPair) -> list[str]:
    return sorted({claim for source in sources_of(pair) if (claim := claim_of(source)) is not None})


def _images(pair: ModelPair) -> list[str]:
    return sorted({image for source in sources_of(pair) if (image := image_of(source)) is not None})


def _mount(volume: str, path: str) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, "readOnly": True}
