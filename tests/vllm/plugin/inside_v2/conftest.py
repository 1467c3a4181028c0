"""What several files need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines import Heads, build_heads
from vllm.v1.core.sched.scheduler import Scheduler


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Heads:
    """Draft heads of the target."""
    return build_heads(Path(tmp_path_factory.mktemp("heads")))


@pytest.fixture
def preempted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the preempted requests, one for each preemption."""
    found: list[str] = []
    preempt = Scheduler._preempt_request

    def counted(scheduler: Any, request: Any, *args: Any, **options: Any) -> Any:
        found.append(request.request_id)
        return preempt(scheduler, request, *args, **options)

    monkeypatch.setattr(Scheduler, "_preempt_request", counted)
    return found
