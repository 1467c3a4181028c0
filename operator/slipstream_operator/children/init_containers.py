"""The containers of a server's pod that run before the server: the download of checkpoints, and the comparison of
tokenizers. With the volumes of the checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.sources import (
    STORE,
    claim_folder,
    claim_of,
    hub_model,
    image_folder,
    image_of,
    located,
)

from slipstream_operator.children.container import container, environment, node_resources, variables_of, verbatim
from slipstream_operator.children.identity import VLLM, Owner
from slipstream_operator.children.repository import sources_folder, sources_of
from slipstream_operator.types import KubeObject

WEIGHTS_CONTAINER = "weights"
PREFLIGHT_CONTAINER = "preflight"

REPORT = "/dev/termination-log"
"""The file that becomes the message of a container that has ended."""

_VOLUME = "weights"
# A model that was downloaded and compared with the source's checksums once is complete, also when the source is not
# reached. What was cut off is resumed, on a shared volume also by another pod: both programs lock their files. The
# container's message has the contents of stores; a failure leaves it to the end of the log. The pair's values are
# arguments of the script, never its text: `hub REPOSITORY REVISION FOLDER` or `store SOURCE FOLDER`, repeated.
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
while [ $# -gt 0 ]; do
  case "$1" in
    hub) fetch "$2" "$3" "$4"; shift 4 ;;
    store) fetch_s3 "$2" "$3"; shift 3 ;;
  esac
done
"""
_SCRIPT += f'[ -z "$contents" ] || printf %s "$contents" > {REPORT}\n'
_SETTINGS = {
    "HOME": "/tmp",  # nosec B108 # a volume of the pod's own
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NO_COLOR": "1",
}


class WeightsVolume(NamedTuple):
    """A volume with checkpoints, and the folder where servers mount it read-only."""

    name: str
    folder: PurePath
    source: KubeObject


def weights_volumes(pair: ModelPair) -> Iterator[WeightsVolume]:
    """The volume of the pair's storage, or an empty one for what is downloaded, and one for each claim and image that a
    source names."""
    storage, is_filled = pair.serving.storage, bool(_downloads(pair))
    if storage is not None:
        claim = {"claimName": storage.claim} | ({} if is_filled else {"readOnly": True})
        yield WeightsVolume(_VOLUME, sources_folder(pair), {"persistentVolumeClaim": claim})
    elif is_filled:
        yield WeightsVolume(_VOLUME, sources_folder(pair), {"emptyDir": {}})
    for index, name in enumerate(_named(pair, claim_of)):
        source: KubeObject = {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
        yield WeightsVolume(f"claim-{index}", claim_folder(name), source)
    for index, name in enumerate(_named(pair, image_of)):
        source = {"image": {"reference": name, "pullPolicy": "IfNotPresent"}}
        yield WeightsVolume(f"image-{index}", image_folder(name), source)


def weights_container(owner: Owner, scratch: KubeObject) -> KubeObject | None:
    """The container that downloads models from a hub, by the program `hf` of the server's image, and from a store, by
    `deploy/docker/s3_download.py` in it; None without such models. It gets the pair's own variables, such as HF_TOKEN,
    AWS_ENDPOINT_URL and those of proxies."""
    pair, sources = owner.pair, _downloads(owner.pair)
    if not sources:
        return None
    return container(
        WEIGHTS_CONTAINER,
        image=owner.image,
        command=["sh", "-c", verbatim(_SCRIPT)],
        args=[WEIGHTS_CONTAINER, *map(verbatim, sources)],
        env=variables_of(pair.serving.env, _SETTINGS),
        mounts=[scratch, {"name": _VOLUME, "mountPath": str(sources_folder(pair))}],
        resources=node_resources(pair),
    )


def has_draft_model(pair: ModelPair) -> bool:
    """Whether there are two tokenizers to compare: layers of the target itself have its own, and so have heads on its
    hidden states in vLLM."""
    draft = pair.spec.draft
    if draft is None or draft.source is None:
        return False
    return draft.kind == "model" if isinstance(pair.spec.engine, VllmEngine) else draft.has_model


def preflight_container(owner: Owner, mounts: list[KubeObject]) -> KubeObject:
    """The container that compares a draft's tokenizer with its target's before any weights are loaded. Its report is in
    the pod's status. It fails, and the pod with it, if a checkpoint cannot be read, and for vLLM if the tokenizers
    differ: vLLM would draft in vain, and cannot serve the target alone."""
    is_vllm = owner.software is VLLM
    python, package = ("python3", "slipstream_vllm") if is_vllm else ("python", "slipstream_engine")
    return container(
        PREFLIGHT_CONTAINER,
        image=owner.image,
        command=[python, "-m", f"{package}.preflight", *map(verbatim, _options(owner.pair)), f"--report={REPORT}"],
        env=environment(gpu=False),
        mounts=mounts,
        resources=node_resources(owner.pair),
        terminationMessagePath=REPORT,
        terminationMessagePolicy="File",
    )


def _options(pair: ModelPair) -> Iterator[str]:
    folder = sources_folder(pair)
    for name, part in (("target", pair.spec.target), ("draft", pair.spec.draft)):
        if part is not None and part.source is not None:
            yield f"--{name}={located(part.source, folder)}"
        if part is not None and part.tokenizer is not None:
            yield f"--{name}-tokenizer={located(part.tokenizer, folder)}"
    for source in pair.spec.draft.alternatives if pair.spec.draft is not None else ():
        yield f"--alternative={located(source, folder)}"


def _downloads(pair: ModelPair) -> list[str]:
    """The script's arguments: for each source its kind, its name, and its folder."""
    folder = sources_folder(pair)
    words = []
    for source in dict.fromkeys(sources_of(pair)):
        if (model := hub_model(source)) is not None:
            words += ["hub", model.repository, model.revision, located(source, folder)]
        elif source.startswith(STORE):
            words += ["store", source, located(source, folder)]
    return words


def _named(pair: ModelPair, name_of: Callable[[str], str | None]) -> list[str]:
    """The claims or images that sources of `pair` name."""
    return sorted({name for source in sources_of(pair) if (name := name_of(source)) is not None})
