"""Malformed and hostile requests over raw sockets, at a gateway in a process of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.hostile.corpus import GOOD, MODEL, corpus, post
from tests.e2e.hostile.driver import bombard, is_right
from tests.e2e.hostile.wire import talk
from tests.e2e.hostile.world import Target, hostile_world

SMOKE = 1_200
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    async with hostile_world(tmp_path_factory.mktemp("hostile")) as running:
        yield running


async def test_every_case_of_the_corpus_gets_its_answers_and_the_rest_nothing(target: Target) -> None:
    wrong = {}
    for case in corpus():
        answers = await talk(target.port, [case.data], answers=len(case.statuses) + case.closes)
        if not is_right(case, answers) or answers.hung:
            wrong[case.name] = (answers.statuses, answers.closed, answers.data[-200:])
    assert wrong == {}
    assert "Traceback" not in target.log


async def test_a_mix_of_hostile_requests_leaves_nothing_behind(target: Target) -> None:
    readings = await bombard(SMOKE, target, seed=1)
    assert readings.passed, readings.line()
    assert readings.sent == SMOKE


async def test_upstreams_see_the_value_that_was_checked(target: Target) -> None:
    """A field that stands twice: parsers differ in which one counts."""
    body = b'{"model": "other", "max_tokens": 999999999999, ' + GOOD[1:]
    assert (await talk(target.port, [post(body)])).statuses == (200,)
    assert target.seen.body.count(b'"model"') == target.seen.body.count(b'"max_tokens"') == 1
    assert json.loads(target.seen.body)["model"] == MODEL


async def test_no_two_cases_share_a_name() -> None:
    names = [case.name for case in corpus()]
    assert len(set(names)) == len(names)
