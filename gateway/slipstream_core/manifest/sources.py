"""Where checkpoints come from: a folder, Slipstream's own package, or, in a cluster, a hub, a store, an image or a
volume."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import NamedTuple

EMBEDDED = "embedded:"
EMBEDDED_SOURCES = ("embedded:target", "embedded:draft", "embedded:smollm2-eagle")
HUB, STORE, IMAGE, CLAIM = "hf://", "s3://", "oci://", "pvc://"
REMOTE = (HUB, STORE, IMAGE, CLAIM)
REMOTE_ROOT = PurePath("/weights")
"""The parent of the mount paths of images and of other claims than that of the pair's storage."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
FORMS = {
    HUB: (rf"^hf://{_NAME}/{_NAME}@{_NAME}$", "hf://ORGANISATION/NAME@REVISION"),
    STORE: (
        rf"^s3://[a-z0-9][a-z0-9.-]*[a-z0-9](/{_NAME})+(@[0-9a-f]{{16}})?$",
        "s3://BUCKET/PREFIX or s3://BUCKET/PREFIX@DIGEST, with a digest of 16 hexadecimal digits",
    ),
    IMAGE: (r"^oci://[A-Za-z0-9][A-Za-z0-9._/:@-]*$", "oci://REFERENCE"),
    CLAIM: (rf"^pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(/{_NAME})*$", "pvc://CLAIM/FOLDER"),
}
"""The pattern and the form of each remote scheme. All parts are safe in paths and in a shell."""


class HubModel(NamedTuple):
    """A repository of a model hub at a fixed revision."""

    repository: str
    revision: str


def hub_model(source: str) -> HubModel | None:
    """The model of a valid source of the form `hf://`; None for others."""
    if not source.startswith(HUB):
        return None
    repository, _, revision = source.removeprefix(HUB).partition("@")
    return HubModel(repository, revision)


def store_path(source: str) -> PurePath | None:
    """The path that a valid source of the form `s3://` has below the folder of downloads; None for others. A prefix in
    another prefix gets another folder: no name of a file in a source begins with `@`."""
    if not source.startswith(STORE):
        return None
    location, _, digest = source.removeprefix(STORE).partition("@")
    return PurePath("s3") / location / f"@{digest}"


def claim_of(source: str) -> str | None:
    """The PersistentVolumeClaim of a source of the form `pvc://`; None for others."""
    return source.removeprefix(CLAIM).partition("/")[0] if source.startswith(CLAIM) else None


def image_of(source: str) -> str | None:
    """The reference of a source of the form `oci://`; None for others."""
    return source.removeprefix(IMAGE) if source.startswith(IMAGE) else None


def located(source: str, folder: PurePath) -> str:
    """The path of `source`, with a relative folder joined to `folder`; `embedded:...` stays unchanged."""
    if source.startswith(EMBEDDED):
        return source
    if (model := hub_model(source)) is not None:
        return str(folder / "hf" / model.repository / model.revision)
    if (path := store_path(source)) is not None:
        return str(folder / path)
    if (claim := claim_of(source)) is not None:
        return str(claim_folder(claim) / source.removeprefix(f"{CLAIM}{claim}").lstrip("/"))
    if (image := image_of(source)) is not None:
        return str(image_folder(image))
    return str(folder / source)


def claim_folder(claim: str) -> PurePath:
    """The mount path of a claim that a source names."""
    return REMOTE_ROOT / "claims" / claim


def image_folder(reference: str) -> PurePath:
    """The mount path of an image that a source names."""
    return REMOTE_ROOT / "images" / hashlib.sha256(reference.encode()).hexdigest()[:16]
