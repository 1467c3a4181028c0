"""Hashes of everything that a server loads, in the annotations of its pod: a changed hash replaces the servers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from slipstream_core.manifest.objects import ModelPair

REPOSITORY_ANNOTATION = "slipstream.dev/repository-hash"
WEIGHTS_ANNOTATION = "slipstream.dev/weights-hash"

_HASH_CHARS = 16


def template_annotations(pair: ModelPair, repository: Mapping[str, str] | None) -> dict[str, str]:
    """The annotations of the pod template. `repository` is the ConfigMap's data, which running servers do not read
    again; None without one."""
    of_repository = {} if repository is None else {REPOSITORY_ANNOTATION: _hash(repository)}
    return {**of_repository, WEIGHTS_ANNOTATION: weights_hash(pair)}


def weights_hash(pair: ModelPair) -> str:
    """The hash of the sources, tokenizers and revisions of `pair`. No other part of a pod contains the revision."""
    encoded = _encode([pair.spec.target, pair.spec.draft])
    # Without fields at their defaults that earlier versions did not have: an upgrade must not replace all servers.
    return _digest(encoded.replace(b',"alternatives":[]', b"").replace(b',"candidates":null', b""))


def _hash(value: object) -> str:
    return _digest(_encode(value))


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _digest(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:_HASH_CHARS]
