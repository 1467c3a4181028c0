"""The command that adds an extra to the present installation: a checkout, a wheel, or an image."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

import msgspec

DISTRIBUTION = "slipstream-serving"


def how_to_install(extra: str, packages: str = "") -> str:
    """What a person does to get the packages of `extra`, for the end of a message. `packages` is the folder of the
    installed packages, if it is not this Python's own."""
    if not os.access(packages or sysconfig.get_path("purelib"), os.W_OK):
        return (
            f"the installation in {sys.prefix} cannot be changed, as that of a container image: run the command in a "
            f"checkout, or install a wheel elsewhere with the extra {extra!r}"
        )
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if find_spec("pip") is not None else f"uv pip install --python {python}"
    return f"run: {pip} {_requirement(extra)}"


class _Folder(msgspec.Struct, frozen=True):
    editable: bool = False


class _Origin(msgspec.Struct, frozen=True):
    """What pip or uv records of the place that a distribution was installed from (PEP 610)."""

    url: str = ""
    dir_info: _Folder = _Folder()


def _requirement(extra: str) -> str:
    """The arguments of pip. No package index needs to have Slipstream itself."""
    origin = _origin()
    path = unquote(urlsplit(origin.url).path)
    if origin.dir_info.editable:
        constraints = shlex.quote(os.path.join(path, "constraints.txt"))
        return f"-c {constraints} -e {shlex.quote(f'{path}[{extra}]')}"
    if path and os.path.exists(path):
        return shlex.quote(f"{path}[{extra}]")
    return f"'{DISTRIBUTION}[{extra}]' --find-links FOLDER-OF-THE-WHEEL"


def _origin() -> _Origin:
    """The recorded origin; empty if it is not known."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return _Origin()
    return msgspec.json.decode(text, type=_Origin) if text else _Origin()
