"""What is known of a server's plugin, and when it is asked again."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from slipstream_core.errors import UpstreamTimeout, UpstreamUnavailable
from slipstream_core.types import Endpoint, GenerationRequest, Reason
from slipstream_gateway.upstreams.engine_watch import UNKNOWN, EngineWatch, drafting_of
from slipstream_gateway.upstreams.transport import Fetched

from tests.support.polling import soon

FACTS = {
    "plugin": "1.2.3",
    "vllm": "0.32.0",
    "method": "draft_model",
    "max_draft_length": 4,
    "acceptance": "equality",
    "scheduler": "sync",
    "limit": None,
    "counters": True,
}


def facts(**changes: object) -> Fetched:
    return Fetched(200, json.dumps(FACTS | changes).encode())


def test_a_server_with_the_plugin_says_how_far_it_drafts() -> None:
    drafting, _, said = drafting_of(facts())
    assert (drafting.withheld, drafting.longest) == (None, 4)
    assert said == (
        "drafts of up to 4 tokens (draft_model, acceptance by equality; slipstream-vllm 1.2.3 in vLLM 0.32.0)"
    )


def test_only_a_plugin_that_says_so_chooses_draft_lengths() -> None:
    assert not drafting_of(facts())[0].adaptive
    assert drafting_of(facts(adaptive=True))[0].adaptive
    assert not drafting_of(facts())[0].protects
    assert drafting_of(facts(protects=True))[0].protects


def test_acceptance_by_equality_gives_a_seed_the_same_tokens_at_every_draft_length() -> None:
    found = [drafting_of(facts(acceptance=rule))[0].seed_equality for rule in ("equality", "rejection", "")]
    assert found == [True, False, False]


@pytest.mark.parametrize(
    ("said", "greedy", "sampled"), [("seeded", True, True), ("greedy", True, False), ("", False, False)]
)
@pytest.mark.parametrize("longest", [0, 4])
def test_a_server_continues_what_its_plugin_says(said: str, greedy: bool, sampled: bool, longest: int) -> None:
    """A plain server has the plugin, too, but no drafts."""
    drafting = drafting_of(facts(resumes=said, max_draft_length=longest))[0]
    requests = [GenerationRequest(endpoint=Endpoint.CHAT, model="m", temperature=heat) for heat in (0.0, 1.0)]
    assert [drafting.continues(request) for request in requests] == [greedy, sampled]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Fetched(404, b'{"detail":"Not Found"}'), "--scheduler-cls slipstream_vllm.Scheduler"),
        (Fetched(401, b""), "spec.engine.apiKeyEnv"),
        (Fetched(403, b""), "spec.engine.apiKeyEnv"),
        (Fetched(200, b"<html>"), "does not respond as an engine of Slipstream does"),
        (Fetched(200, b'{"status": "ok"}'), "does not respond as an engine of Slipstream does"),
        (facts(plugin="1.0 of a server that writes the log"), "does not respond as an engine of Slipstream does"),
        (facts(vllm="1.0\nforged line"), "does not respond as an engine of Slipstream does"),
        (facts(method=None, max_draft_length=0), "start vLLM with --speculative-config"),
    ],
)
def test_a_server_that_cannot_take_a_draft_length_says_why(answer: Fetched, words: str) -> None:
    drafting, _, said = drafting_of(answer)
    assert drafting.withheld is not None
    assert drafting.withheld.reason is Reason.ENGINE_CANNOT
    assert words in drafting.withheld.detail
    assert said == drafting.withheld.detail


@pytest.mark.parametrize(
    "change", [{"acceptance": "rejection"}, {"method": "ngram"}, {"vllm": "0.33.0"}, {"plugin": "1.2.4"}, {"new": 1}]
)
def test_a_server_that_drafts_in_another_way_is_another_one(change: dict[str, object]) -> None:
    known, changed = drafting_of(facts())[0], drafting_of(facts(**change))[0]
    assert changed != known
    assert changed.longest == known.longest


def test_a_broken_file_of_classes_does_not_make_another_server() -> None:
    good, broken = (
        drafting_of(facts(classes={"file": "classes.yaml", "problem": problem}))[0] for problem in (None, "a: …")
    )
    assert good == broken == drafting_of(facts())[0]


def test_a_limit_changes_what_a_server_drafts_now_and_not_what_it_is() -> None:
    known, limited = drafting_of(facts())[0], drafting_of(facts(limit=2))[0]
    assert (known.limit, limited.limit) == (None, 2)
    assert limited._replace(limit=None) == known


def test_a_server_that_is_not_ready_has_said_nothing() -> None:
    assert drafting_of(Fetched(503, b""))[0] == UNKNOWN


class Server:
    """Answers what it is given, and counts how often it is asked."""

    def __init__(self) -> None:
        self.answer: Fetched | Exception = facts()
        self.asked = 0

    async def ask(self) -> Fetched:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_a_server_is_asked_again_and_again() -> None:
    server = Server()
    watch = EngineWatch("http://a:1", server.ask, every_s=0.25)
    assert watch.drafting == UNKNOWN
    await soon(lambda: watch.drafting.longest == 4)
    server.answer = Fetched(404, b"")
    await soon(lambda: watch.drafting.withheld is not None)
    server.answer = facts(max_draft_length=2)
    await soon(lambda: watch.drafting.longest == 2)
    await watch.aclose()
    asked = server.asked
    await asyncio.sleep(0.3)
    assert server.asked == asked


async def test_one_that_is_too_busy_to_answer_keeps_what_it_said_and_one_that_is_gone_does_not() -> None:
    server = Server()
    watch = EngineWatch("http://a:1", server.ask, every_s=0.21)
    await soon(lambda: watch.drafting.longest == 4)
    server.answer = UpstreamTimeout("late")
    asked = server.asked
    await soon(lambda: server.asked >= asked + 2)
    assert watch.drafting.longest == 4
    server.answer = UpstreamUnavailable("gone")
    await soon(lambda: watch.drafting == UNKNOWN)
    await watch.aclose()


async def test_a_lost_connection_takes_the_facts_away_until_the_server_answers() -> None:
    server = Server()
    watch = EngineWatch("http://a:1", server.ask, every_s=60.0)
    await soon(lambda: watch.drafting.longest == 4)
    watch.lose()
    assert watch.drafting == UNKNOWN
    await soon(lambda: watch.drafting.longest == 4)
    server.answer = facts(max_draft_length=3)
    watch.query_now()
    assert watch.drafting.longest == 4
    await soon(lambda: watch.drafting.longest == 3)
    await watch.aclose()


async def test_a_process_is_the_same_by_its_instance_where_it_has_one() -> None:
    server = Server()
    server.answer = facts(instance="one")
    watch = EngineWatch("http://a:1", server.ask, every_s=60.0)
    await soon(lambda: watch.drafting.longest == 4)
    assert await watch.is_same()
    known = watch.drafting
    server.answer = facts(instance="two", limit=2)
    watch.query_now()
    await soon(lambda: watch.drafting.limit == 2)
    assert watch.drafting._replace(limit=None) == known, "two processes behind one address are one server"
    assert not await watch.is_same()
    assert await watch.is_same()
    for answer in (facts(instance="two", acceptance="rejection"), UpstreamTimeout("late"), UpstreamUnavailable("gone")):
        server.answer = answer
        assert not await watch.is_same()
    await watch.aclose()


async def test_a_server_without_an_instance_is_the_same_by_its_description() -> None:
    server = Server()
    watch = EngineWatch("http://a:1", server.ask, every_s=60.0)
    await soon(lambda: watch.drafting.longest == 4)
    assert await watch.is_same()
    server.answer = facts(vllm="0.33.0")
    assert not await watch.is_same()
    await watch.aclose()


async def test_each_change_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    with caplog.at_level(logging.INFO):
        watch = EngineWatch("http://a:1", server.ask, every_s=0.21)
        await soon(lambda: server.asked == 3)
        server.answer = Fetched(404, b"")
        await soon(lambda: server.asked == 6)
        await watch.aclose()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["INFO", "WARNING"]
    assert all(message.startswith("http://a:1: ") for _, message in said)
