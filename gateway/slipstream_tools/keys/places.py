"""The places where keys are stored, and a file as such a place: changes are atomic."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml
from slipstream_core.errors import CommandError, named_os_errors
from slipstream_core.file_changes import replace_file
from slipstream_gateway.access.keyring import check_pepper, pepper_path, read_pepper
from slipstream_gateway.access.records import AccessFile, parse_access, render_access

KEYS_ENTRY = "keys.json"
PEPPER_ENTRY = f"{KEYS_ENTRY}.pepper"
_LOCK_S = 10.0
_LOOK_AGAIN_S = 0.05

Change = Callable[[AccessFile, bytes], AccessFile]
"""Maps a file and the pepper to the new file. May be called again after a conflict with another writer."""


class Place(Protocol):
    def read(self) -> AccessFile:
        """Raises `CommandError`; also if there is nothing stored yet."""
        ...

    def change(self, change: Change, *, create: bool = False) -> None:
        """Writes the result of `change`; with `create`, also if there is nothing stored yet."""
        ...


class FilePlace:
    """A key file and its pepper's file, both readable by the owner alone. A lock file beside it serialises commands."""

    def __init__(self, path: Path, pepper: Path | None) -> None:
        self._path = path
        self._pepper = pepper_path(path, pepper)

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> AccessFile:
        with named_os_errors(f"{self._path}: cannot be read"):
            return parse_access(self._path.read_bytes(), name=str(self._path))

    def change(self, change: Change, *, create: bool = False) -> None:
        with named_os_errors(f"{self._path}: cannot be written"), self._locked():
            file = AccessFile() if create and not self._path.exists() else self.read()
            if create and not self._pepper.exists() and not file.keys:
                # First, because keys without their pepper would be refused.
                replace_file(self._pepper, new_pepper(), is_private=True)
            pepper = read_pepper(self._pepper)
            check_pepper(file, pepper, name=str(self._path), pepper_name=str(self._pepper))
            changed = apply(change, file, pepper, name=str(self._path))
            replace_file(self._path, render_access(changed), is_private=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            asyncio.run(_lock(descriptor, self._path))
            yield
        finally:
            os.close(descriptor)


def apply(change: Change, file: AccessFile, pepper: bytes, *, name: str) -> AccessFile:
    """The result of `change` for `file`. Raises `CommandError` if gateways could not load it: they would keep the last
    good version, so that later revocations would have no effect."""
    return parse_access(render_access(change(file, pepper)), name=name)


class SecretName(NamedTuple):
    namespace: str
    name: str

    @property
    def collection(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def manifest(secret: SecretName, file: AccessFile, pepper: bytes) -> dict[str, Any]:
    """A Secret in the form that a gateway's pod mounts."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": secret.name, "namespace": secret.namespace},
        "data": entries(file, pepper),
    }


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes that kubectl's parser reads as other types, and PyYAML's does not."""


_OTHER_TYPES = re.compile(r"(?:[yYnN]|0o[0-7]+|[-+]?[0-9.]+[eE][-+]?[0-9]+)\Z")
_Dumper.add_implicit_resolver("kubectl", _OTHER_TYPES, [*"yYnN+-.0123456789"])


def as_yaml(item: dict[str, Any]) -> str:
    """`item` as kubectl reads it."""
    return yaml.dump(item, Dumper=_Dumper, sort_keys=False)


def new_pepper() -> bytes:
    """A fresh pepper, as text: files and environment variables hold it unchanged."""
    return secrets.token_hex(32).encode()


def entries(file: AccessFile, pepper: bytes) -> dict[str, str]:
    parts = {KEYS_ENTRY: render_access(file), PEPPER_ENTRY: pepper}
    return {name: base64.b64encode(data).decode() for name, data in parts.items()}


async def _lock(descriptor: int, path: Path) -> None:
    """The lock of a key file. Raises `CommandError` if another command holds it for too long."""
    try:
        async with asyncio.timeout(_LOCK_S):
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError as exc:
        raise CommandError(f"{path}: another command has held the lock for {_LOCK_S:g} s.") from exc
