"""The template of Triton's model repository: in the installed package, or in the source tree of an editable install."""

from __future__ import annotations

from pathlib import Path

from slipstream_core.errors import CommandError

_PACKAGE = Path(__file__).parent
_PLACES = (_PACKAGE / "model_repository", _PACKAGE.parent.parent / "deploy" / "model_repository")


def template_repository() -> Path:
    """The folder of the templates. Raises `CommandError` in an incomplete installation."""
    for folder in _PLACES:
        if (folder / "slipstream" / "config.pbtxt").is_file():
            return folder
    raise CommandError(f"this installation is incomplete: {_PLACES[0]} is missing")
