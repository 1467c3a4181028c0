"""Which tests are unit tests, and what holds them to it.

A **unit** test starts no process, opens no socket and imports no PyTorch. All others are **integration** tests: those
of the folders and files in `_INTEGRATION_PATHS`, those that use a fixture in `_SERVERS`, and those marked
`@pytest.mark.integration` because they start something themselves. `slow` is a mark of its own, for unit and
integration tests alike: `make test` leaves those tests out, `make test-slow` runs them.

With `--unit` only unit tests run: those folders and files are not even collected, and a unit test that starts a process
or uses a socket fails.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_INTEGRATION_PATHS = tuple(
    _TESTS / name
    for name in (
        "charts",
        "contract",
        "docs",
        "e2e",
        "engine",
        "gateway/capture/test_drafts_follow.py",
        "gateway/capture/test_drafts_train.py",
        "gateway/console",
        "gateway/litellm_proxy",
        "gateway/security",
        "gateway/serving",
        "kernels",
        "triton",
        "vllm",
    )
)
_SERVERS = frozenset(
    {
        "breaking_network",
        "browser",
        "free_ports",
        "gateway",
        "kube",
        "lenient",
        "openai_server",
        "own_kube",
        "otlp_receiver",
        "proxy",
        "run_gateway",
        "serve",
        "start_triton",
        "tls_front",
        "unsteady",
    }
)
_FORBIDDEN = ("subprocess.Popen", "socket.bind", "socket.connect")
_HINT = "a unit test does not do this: see tests/support/kinds.py, or mark it @pytest.mark.integration"


class Kinds:
    """The plugin that marks each test, and with `--unit` watches what the tests do."""

    def __init__(self, *, only_unit: bool) -> None:
        assert all(path.exists() for path in _INTEGRATION_PATHS)
        self._only_unit = only_unit
        self._seen: list[str] = []
        self._watches = False
        if only_unit:
            sys.addaudithook(self._audit)

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if self._only_unit and collection_path in _INTEGRATION_PATHS else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("integration") is None:
                item.add_marker("integration" if _is_integration(item) else "unit")
        if self._only_unit:
            left_out = [item for item in items if item.get_closest_marker("unit") is None]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker("unit") is not None]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._seen.clear()
        self._watches = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            yield
        finally:
            self._watches = False
        if self._only_unit and self._seen:
            pytest.fail(f"{', '.join(sorted(set(self._seen)))}: {_HINT}", pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._only_unit and "torch" in sys.modules:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print("\nA unit test, or what it imports, imports PyTorch.", file=sys.stderr)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._watches and event in _FORBIDDEN and not (arguments and _is_local(arguments[0])):
            self._seen.append(event)
            raise RuntimeError(f"{event}: {_HINT}")


def _is_integration(item: pytest.Item) -> bool:
    used = getattr(item, "fixturenames", ())
    return not _SERVERS.isdisjoint(used) or any(item.path.is_relative_to(path) for path in _INTEGRATION_PATHS)


def _is_local(argument: object) -> bool:
    """A Unix socket is as good as a file."""
    return isinstance(argument, socket.socket) and argument.family == socket.AF_UNIX
