"""Files of keys as `slipstream keys` makes them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_tools.cli import main

from tests.gateway.pair_manifest import manifest_text


class Keys:
    """A file of keys, and the command that changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str) -> str:
        """What the command prints. Fails the test where the command does."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["keys", arguments[0], "-f", str(self.path), *arguments[1:]])
        assert code == 0, err.getvalue()
        return out.getvalue().strip()

    def fail(self, *arguments: str) -> str:
        """The command's one line of error."""
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            assert main(["keys", arguments[0], "-f", str(self.path), *arguments[1:]]) == 1
        return err.getvalue().strip()

    def create(self, *options: str) -> str:
        """A fresh key's text."""
        return self.run("create", *options)

    def records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("list", "--json"))
        return found


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.json")


@pytest.fixture
def served(gateway: Callable[..., Any], openai_server: Callable[..., Any], keys: Keys) -> Callable[..., Any]:
    """Starts a gateway for the model `acme` that goes by `keys`."""
    from slipstream_core.settings import AccessSettings

    def start(**options: Any) -> Any:
        upstream = openai_server()
        running = gateway(manifest_text([upstream.url]), access=AccessSettings(keys=keys.path), **options)
        running.upstream = upstream
        return running

    return start
