"""How pytest-xdist shares the suite between its workers.

A module's tests go to one worker, so that each server of its fixtures is started once; the folders in `_TOGETHER` go to
one worker as a whole, because their servers take the better part of a minute to start. Other servers that tests share
(Triton with the embedded pair, a Kubernetes API server) start in seconds: each worker has its own.

Each worker collects all tests. In a fresh clone pytest compiles every test module for that, which takes half a minute.
Every other worker collects in reverse order: two workers then compile one half each and load the other half.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from xdist.scheduler import LoadScopeScheduling

_TOGETHER = ("tests/vllm/",)
# The longest first, so that no worker is left alone with one of them at the end.
_LONGEST = ("tests/vllm/", "tests/e2e/", "tests/engine/", "tests/operator/test_operator_", "tests/kernels/")


class ModuleScheduling(LoadScopeScheduling):
    """Hands out modules, and the folders in `_TOGETHER`, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in _TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


class Scheduling:
    """The plugin for pytest-xdist's controller and its workers; without workers nothing changes."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> ModuleScheduling | None:
        if config.getoption("dist") != "loadscope":
            return None
        config.option.loadscopereorder = False
        return ModuleScheduling(config, log)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.Directory) and _worker(collector.config) % 2 == 1:
            report.result.reverse()
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Gives all workers the same order: the other plugins depend on the order that they get."""
        if hasattr(config, "workerinput"):
            items.sort(key=_module)
        yield
        if hasattr(config, "workerinput"):
            items.sort(key=_rank)


def _worker(config: pytest.Config) -> int:
    """The number of this worker; 0 without workers."""
    return int(getattr(config, "workerinput", {"workerid": "gw0"})["workerid"].removeprefix("gw"))


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, prefix in enumerate(_LONGEST) if item.nodeid.startswith(prefix)), len(_LONGEST))
