"""A Secret of a cluster as the place of keys."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream_core.errors import CommandError
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeConflict, KubeNotFound
from slipstream_gateway.access.keyring import check_pepper
from slipstream_gateway.access.records import AccessFile, parse_access

from slipstream_tools.keys.places import (
    KEYS_ENTRY,
    PEPPER_ENTRY,
    Change,
    SecretName,
    apply,
    entries,
    manifest,
    new_pepper,
)

_ATTEMPTS = 8


class SecretPlace:
    """A Secret with the entries `keys.json` and `keys.json.pepper`, as pods mount it. It is written only where nobody
    changed it since it was read."""

    def __init__(self, secret: SecretName, *, kubeconfig: Path | None, context: str | None) -> None:
        self._secret = secret
        self._kubeconfig = kubeconfig
        self._context = context

    def __str__(self) -> str:
        return f"secret {self._secret}"

    def read(self) -> AccessFile:
        return asyncio.run(self._read())

    def change(self, change: Change, *, create: bool = False) -> None:
        asyncio.run(self._change(change, create=create))

    async def _read(self) -> AccessFile:
        async with await KubeClient.for_command(kubeconfig=self._kubeconfig, context=self._context) as client:
            return self._opened(await client.get(self._secret.path))[0]

    async def _change(self, change: Change, *, create: bool) -> None:
        async with await KubeClient.for_command(kubeconfig=self._kubeconfig, context=self._context) as client:
            for _ in range(_ATTEMPTS):
                try:
                    await self._try(client, change, create=create)
                    return
                except KubeConflict:
                    continue
        raise CommandError(f"{self}: it changed during each of {_ATTEMPTS} attempts; try again.")

    async def _try(self, client: KubeClient, change: Change, *, create: bool) -> None:
        try:
            found = await client.get(self._secret.path)
        except KubeNotFound:
            if not create:
                raise
            pepper = new_pepper()
            first = apply(change, AccessFile(), pepper, name=str(self))
            await client.create(self._secret.collection, manifest(self._secret, first, pepper))
            return
        file, pepper = self._opened(found)
        version = found["metadata"]["resourceVersion"]
        data = entries(apply(change, file, pepper, name=str(self)), pepper)
        await client.merge(self._secret.path, {"metadata": {"resourceVersion": version}, "data": data})

    def _opened(self, secret: Mapping[str, Any]) -> tuple[AccessFile, bytes]:
        """The keys and the pepper in a Secret; one that has neither yet gets its pepper here."""
        data = secret.get("data") or {}
        file = AccessFile()
        if KEYS_ENTRY in data:
            file = parse_access(base64.b64decode(data[KEYS_ENTRY]), name=f"{self}: {KEYS_ENTRY}")
        if PEPPER_ENTRY in data:
            pepper = base64.b64decode(data[PEPPER_ENTRY]).strip()
            check_pepper(file, pepper, name=f"{self}: {KEYS_ENTRY}", pepper_name=PEPPER_ENTRY)
            return file, pepper
        if file.keys:
            raise CommandError(f"{self}: has keys, and no entry {PEPPER_ENTRY} that they were hashed under.")
        return file, new_pepper()
