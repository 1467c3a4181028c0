"""Requests made from the OpenAPI document, right ones and wrong ones: never a 5xx, and what comes back is what the
document says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.e2e.hostile.world import hostile_world
from tests.support.polling import PATIENCE_S

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
EXAMPLES = 8
OPERATIONS = {
    f"{operation.ok().method.upper()} {operation.ok().path}": operation.ok()
    for operation in schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text())).get_all_operations()
}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of a gateway; its upstream lives in a thread."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[str] = []
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with hostile_world(folder) as target:
            found.append(f"http://127.0.0.1:{target.port}")
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(60.0)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(PATIENCE_S)
    loop.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("openapi")) as found:
        yield found


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, GenerationMode.POSITIVE) for name in sorted(OPERATIONS)),
        *((name, GenerationMode.NEGATIVE) for name in sorted(OPERATIONS) if name.startswith("POST")),
    ],
)
def test_requests_from_the_document_get_the_answers_that_it_names(url: str, name: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[name]

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        response = case.call(base_url=url, timeout=PATIENCE_S)
        case.validate_response(
            response, checks=[not_a_server_error, status_code_conformance, response_schema_conformance]
        )

    check()
