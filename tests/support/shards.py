"""`--shard 2/3`: the second of three parts of the tests, for three machines that run at the same time.

A part has whole files, because the tests of a file share servers: every third file of those that the other options
select. Together the parts are what one machine runs without the option, no test twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest


class Shard:
    """The plugin that selects a part."""

    def __init__(self, part: str) -> None:
        """Raises `pytest.UsageError` if there is no such part."""
        found = re.fullmatch(r"([0-9]+)/([0-9]+)", part)
        self._number, self._count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= self._number <= self._count:
            raise pytest.UsageError(f"--shard: a part and the number of parts, such as 2/3, not {part!r}")

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
        """Selects when all other plugins have: a part of the slow ring's quarter, not the quarter of a part."""
        yield
        chosen = set(sorted({item.path for item in items})[self._number - 1 :: self._count])
        config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
        items[:] = [item for item in items if item.path in chosen]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A part without a test is no failure: there were fewer files than machines."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def register(config: pytest.Config) -> None:
    """Adds the plugin if there is the option."""
    if part := config.getoption("shard"):
        config.pluginmanager.register(Shard(part))
