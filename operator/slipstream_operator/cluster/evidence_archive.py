"""The evidence of each policy, in a ConfigMap that belongs to it: it is too long for a status that people read, and
gateways, which watch policies, do not need it."""

from __future__ import annotations

import logging

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError, KubeRejected
from slipstream_core.manifest.model_pair import API_VERSION
from slipstream_core.manifest.naming import PART_OF, PART_OF_SLIPSTREAM

from slipstream_operator.cluster.cache import key_of
from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.types import KubeObject

_FIELD = "checkpoint"
_logger = logging.getLogger(__name__)


class EvidenceArchive:
    """Reads and writes the ConfigMaps. One that cannot be written is logged and costs evidence at the next restart: the
    states of the classes are in the status."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._written: dict[ObjectKey, int] = {}  # the hash of the ConfigMap's name and content

    async def read(self, policy: KubeObject) -> str:
        """The text that was written last for `policy`; empty if there is none.

        Raises:
            KubeUnavailable: to be retried.
        """
        try:
            found = await self._client.find(_path(policy))
        except KubeRejected as exc:
            _logger.warning("the stored evidence cannot be read: %s", exc)
            return ""
        text = ((found or {}).get("data") or {}).get(_FIELD)
        return text if isinstance(text, str) else ""

    async def write(self, policy: KubeObject, text: str) -> None:
        metadata, key, written = policy["metadata"], key_of(policy), hash((_name(policy), text))
        if self._written.get(key) == written:
            return
        owner = {"apiVersion": API_VERSION, "kind": policy["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": _name(policy),
                "labels": {PART_OF: PART_OF_SLIPSTREAM},
                "ownerReferences": [owner],
            },
            "data": {_FIELD: text},
        }
        try:
            await self._client.apply(_path(policy), body)
        except KubeError as exc:
            _logger.warning("the evidence of %s is not stored: %s", key, exc)
        else:
            self._written[key] = written

    def forget(self, key: ObjectKey) -> None:
        self._written.pop(key, None)


def _name(policy: KubeObject) -> str:
    return f"slipstream-evidence-{policy['metadata']['uid']}"


def _path(policy: KubeObject) -> str:
    return f"/api/v1/namespaces/{policy['metadata']['namespace']}/configmaps/{_name(policy)}"
