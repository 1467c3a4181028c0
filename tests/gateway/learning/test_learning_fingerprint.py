"""Fingerprints: one per template, whatever material it holds; the same everywhere; nothing to read back."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.observation import Subject
from slipstream_core.types import Endpoint, GenerationRequest, Message, RequestProfile, TaskType
from slipstream_gateway.decide.estimate import Learner

from tests.gateway.learning.samples import chat

TEXTS = ("Summarise this call for the CRM.", "Which label fits this message?\n\nMy lamp is broken.", "Hello")


def subject_of(
    request: GenerationRequest,
    learner: Learner | None = None,
    *,
    key_id: str = "key",
    task: TaskType = TaskType.SUMMARIZATION,
    **known: Any,
) -> Subject:
    profile = RequestProfile(
        task=task, expected_output_tokens=100.0, rare_token_share=0.0, structured_output=False,
        prompt_tokens=100, confidence=0.9,
    )  # fmt: skip
    return (learner or Learner()).subject(request, profile, pair="p", key_id=key_id, **known)


@settings(deadline=None)
@given(st.text(), st.one_of(st.none(), st.text()), st.binary(max_size=40))
def test_any_prompt_has_a_subject(text: str, system: str | None, raw: bytes) -> None:
    messages = (Message(role="system", content=system or ""), Message(role="user", content=text))
    features = frozenset({"tools", "response_format"})
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages, features=features, raw=raw)
    subject = subject_of(request)
    assert re.fullmatch("[0-9a-f]{16}", subject.fingerprint)
    assert re.fullmatch("[0-9a-f]{16}", subject.source)


def test_requests_of_a_class_share_a_fingerprint_whatever_their_words() -> None:
    assert len({subject_of(chat(text)).fingerprint for text in TEXTS}) == 1
    assert len({subject_of(chat(TEXTS[0]), task=task).fingerprint for task in TaskType}) == len(TaskType)


def test_a_template_is_another_one_at_another_kind_of_temperature() -> None:
    cold, warm, warmer, hot = (
        subject_of(chat("Hello", temperature=value)).fingerprint for value in (0.0, 0.6, 1.0, 1.2)
    )
    assert warm == warmer
    assert len({cold, warm, hot}) == 3


def test_lone_surrogates_and_token_ids_have_a_subject() -> None:
    assert subject_of(chat("Summarise \ud800 this", system="\udfff")).fingerprint
    ids = GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=(1, 2, 3))
    assert re.fullmatch("[0-9a-f]{16}", subject_of(ids).fingerprint)


def test_what_a_client_sends_is_part_of_the_fingerprint() -> None:
    text = "Summarise this call for the CRM.\n\nAgent: Hello"

    def with_shape(name: str, value: object) -> GenerationRequest:
        raw = json.dumps({"model": "m", name: value}).encode()
        return chat(text, features=frozenset({name}), raw=raw)

    again = (
        Message(role="user", content="x"),
        Message(role="assistant", content="y"),
        Message(role="user", content=text),
    )
    subjects = [
        subject_of(chat(text)),
        subject_of(chat(text), key_id="other key"),
        subject_of(chat(text, model="m2")),
        subject_of(chat(text, system="You summarise calls.")),
        subject_of(chat(text, system="You write internal notes.")),
        subject_of(chat(text, stop=("\n\n",))),
        subject_of(chat(text, messages=again)),
        subject_of(with_shape("response_format", {"type": "json_object"})),
        subject_of(with_shape("response_format", {"type": "json_schema", "json_schema": {"name": "a"}})),
        subject_of(with_shape("tools", [{"type": "function", "function": {"name": "a"}}])),
        subject_of(with_shape("tools", [{"type": "function", "function": {"name": "b"}}])),
    ]
    assert len({subject.fingerprint for subject in subjects}) == len(subjects)
    assert len({subject.source for subject in subjects}) == 4  # key id and system prompt alone


def test_an_adapter_has_class_estimates_of_its_own() -> None:
    base, sql, de = (subject_of(chat("Hello"), adapter=adapter) for adapter in ("", "sql", "de"))
    assert base.adapter == ""
    assert len({base.adapter, sql.adapter, de.adapter}) == 3
    assert base.key == sql.key == de.key == ""  # an adapter is no other client


def test_todays_date_in_a_system_prompt_does_not_matter() -> None:
    system = "You work for the service team. Today is {}. You talk to {}."
    one = subject_of(chat("Summarise the call.", system=system.format("2027-03-04", "Maria Jansen")))
    two = subject_of(chat("Summarise the call.", system=system.format("2028-11-23", "Felix Deninard")))
    assert one == two


def test_what_was_seen_before_does_not_change_a_fingerprint() -> None:
    rng, learner = random.Random(3), Learner()
    for _ in range(2000):
        subject_of(chat("Hello", system=f"You are {rng.random()} of {rng.random()}"), learner)
    for text in TEXTS:
        request = chat(text, system="You are number one")
        assert subject_of(request, learner) == subject_of(request)


_ELSEWHERE = """
import sys, json
from slipstream_gateway.decide.estimate import Learner
from slipstream_core.types import Endpoint, GenerationRequest, Message, RequestProfile, TaskType
profile = RequestProfile(task=TaskType.SUMMARIZATION, expected_output_tokens=100.0, rare_token_share=0.0,
                         structured_output=False, prompt_tokens=100, confidence=0.9)
for text in json.load(sys.stdin):
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=(Message(role="user", content=text),))
    subject = Learner().subject(request, profile, pair="p", key_id="key")
    print(subject.fingerprint, subject.source)
"""


@pytest.mark.integration
def test_another_process_finds_the_same_subject() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE], input=json.dumps(TEXTS), capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "12345"}, timeout=60,
    )  # fmt: skip
    here = [subject_of(chat(text)) for text in TEXTS]
    assert done.stdout.splitlines() == [f"{subject.fingerprint} {subject.source}" for subject in here]


def test_a_subject_holds_no_text() -> None:
    written = repr(subject_of(chat("Translate the call of Felix Deninard.", system="You work for Jansen.")))
    assert not any(word in written.lower() for word in ("felix", "deninard", "jansen", "translate", "call"))
