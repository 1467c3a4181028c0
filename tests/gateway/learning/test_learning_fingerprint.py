"""Fingerprints: one per template, whatever material it holds; the same everywhere; nothing to read back."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.observation import Subject
from slipstream_core.types import Endpoint, GenerationRequest, Message, RequestProfile, TaskType
from slipstream_engine.embedded.workload import workload
from slipstream_gateway.decide.estimate import Learner

Chat = Callable[..., GenerationRequest]

MATERIALS = (
    "Agent: Good morning, Nils here. What can I do for you?\nCustomer: Hello, I am Felix Deninard. My lamp is broken.\n"
    "Agent: I understand. May I have your account number?\nCustomer: Yes, 6819015.\nAgent: Have a nice day.",
    "Dear team,\nI waited all day for the technician and nobody came. My order is AB-4414426.\nRegards,\nVera Strom",
    "On 19 August 2027, 2859.90 EUR will be charged for KS272863, held by Vera. Let us know if anything is wrong.",
    "Order 748334: phone case, 902.90 EUR, status: being packed, date: Monday, city: Lille",
    "In the late 19th century several forms of pragmatic philosophy arose. Their ideas spread to other fields. " * 9,
)
TEMPLATES = (
    "Summarise this call for the CRM.\n\nTranscript:\n{text}",
    "{text}\n\nList all contract numbers, names and amounts in this text.",
    "What is the status of order {number} in one line?\n\nRecords:\n{text}",
    "Translate into German: {text}",
    "Translate into French: {text}",
    "Which label fits this message? Answer with one word from: billing, delivery, other.\n\n{text}",
    "Write a short Python function {name}({name}s): return the average.\n\nThe keys of a row are: a, b, c.",
    "{text}\n\nDraft a polite reply to this customer message.",
    "You are given a letter.\n\n{text}\n\nExtract the sender, the date and every amount as JSON.",
    "Fasse den folgenden Text in drei Sätzen zusammen:\n\n{text}",
    "Résumez ce texte en trois points.\n\n{text}",
    "请用三句话总结下面的文字：\n\n{text}",
    'Find the phrase "{quoted}" in the text below and explain it.\n\n{text}',
    "Send a reminder e-mail to {email} about the open invoice {number}.",
    '{{"action": "score", "id": {number}, "customer": "{name}", "text": "{quoted}"}}',
)


def fill(template: str, rng: random.Random) -> str:
    number = rng.randrange(10_000, 99_999)
    return template.format(
        text=rng.choice(MATERIALS).replace("6819015", str(number)),
        number=number,
        name=rng.choice(("average_amount", "total_refund", "count_open_orders")),
        quoted=rng.choice(("cold lunch", "it never came", "what is this")),
        email=rng.choice(("a.jansen@mail.example", "felix@example.org")),
    )


def subject_of(request: GenerationRequest, learner: Learner | None = None, *, key_id: str = "key") -> Subject:
    profile = RequestProfile(
        task=TaskType.SUMMARIZATION, expected_output_tokens=100.0, rare_token_share=0.0, structured_output=False,
        prompt_tokens=100, confidence=0.9,
    )  # fmt: skip
    return (learner or Learner()).subject(request, profile, pair="p", key_id=key_id)


@pytest.mark.parametrize("template", TEMPLATES)
def test_requests_of_a_template_share_a_fingerprint(template: str, chat: Chat) -> None:
    rng, learner = random.Random(1), Learner()
    assert len({subject_of(chat(fill(template, rng)), learner).fingerprint for _ in range(20)}) == 1


def test_templates_have_fingerprints_of_their_own(chat: Chat) -> None:
    rng = random.Random(2)
    found = {template: subject_of(chat(fill(template, rng))).fingerprint for template in TEMPLATES}
    for one, other in itertools.combinations(TEMPLATES, 2):
        assert found[one] != found[other], (one, other)


@settings(deadline=None)
@given(st.text(max_size=600), st.randoms(use_true_random=False))
def test_digits_do_not_matter(text: str, rng: random.Random) -> None:
    other = re.sub("[0-9]", lambda _: str(rng.randrange(10)), text)
    one, two = (GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=prompt) for prompt in (text, other))
    assert subject_of(one).fingerprint == subject_of(two).fingerprint


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300))
def test_the_middle_of_a_long_prompt_does_not_matter(middle: str) -> None:
    head, tail = "Summarise this report in five bullet points.\n\n" + "The first page. " * 30, "The last page. " * 30
    one, two = (
        GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=head + between + tail)
        for between in ("", middle)
    )
    assert subject_of(one).fingerprint == subject_of(two).fingerprint


@settings(deadline=None)
@given(st.text(), st.one_of(st.none(), st.text()), st.binary(max_size=40))
def test_any_prompt_has_a_subject(text: str, system: str | None, raw: bytes) -> None:
    messages = (Message(role="system", content=system or ""), Message(role="user", content=text))
    features = frozenset({"tools", "response_format"})
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages, features=features, raw=raw)
    subject = subject_of(request)
    assert re.fullmatch("[0-9a-f]{16}", subject.fingerprint)
    assert re.fullmatch("[0-9a-f]{16}", subject.source)
    assert all(0 <= word < 4096 for word in subject.words)


def test_lone_surrogates_and_token_ids_have_a_subject(chat: Chat) -> None:
    assert subject_of(chat("Summarise \ud800 this", system="\udfff")).fingerprint
    ids = GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=(1, 2, 3))
    assert subject_of(ids).words == ()


def test_what_a_client_sends_is_part_of_the_fingerprint(chat: Chat) -> None:
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


def test_todays_date_in_a_system_prompt_does_not_matter(chat: Chat) -> None:
    system = "You work for the service team. Today is {}. You talk to {}."
    one = subject_of(chat("Summarise the call.", system=system.format("2027-03-04", "Maria Jansen")))
    two = subject_of(chat("Summarise the call.", system=system.format("2028-11-23", "Felix Deninard")))
    assert one == two


def test_an_instruction_in_the_system_prompt_stands_for_pasted_material(chat: Chat) -> None:
    system = "Extract the ticket fields from this e-mail as JSON."
    mails = (
        "From: a@b.example\n\nHello,\nmy lamp is broken.",
        "Customer: Vera Strom\nMessage: it never came",
        MATERIALS[4],
    )
    assert len({subject_of(chat(mail, system=system)).fingerprint for mail in mails}) == 1


def test_what_was_seen_before_does_not_change_a_fingerprint(chat: Chat) -> None:
    rng, learner = random.Random(3), Learner()
    for index in range(6000):
        subject_of(
            chat(f"Line {index} of {rng.random()}\n{rng.random()}", system=f"You are number {rng.random()}"), learner
        )
    for template in TEMPLATES:
        request = chat(fill(template, rng))
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
    print(subject.fingerprint, subject.source, *subject.words)
"""


@pytest.mark.integration
def test_another_process_finds_the_same_subject(chat: Chat) -> None:
    rng = random.Random(4)
    texts = [fill(template, rng) for template in TEMPLATES]
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE], input=json.dumps(texts), capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "12345"}, timeout=60,
    )  # fmt: skip
    here = [subject_of(chat(text)) for text in texts]
    assert done.stdout.splitlines() == [
        " ".join(map(str, (subject.fingerprint, subject.source, *subject.words))) for subject in here
    ]


def test_the_embedded_workload_is_told_apart_by_task() -> None:
    """Nearly every request's fingerprint holds one task only, though each phrases its instruction anew."""
    learner, tasks = Learner(), defaultdict[str, Counter[str]](Counter)
    requests = list(workload(21, 600))
    for sent in requests:
        messages = tuple(Message(**message) for message in sent.messages)
        subject = subject_of(GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages), learner)
        tasks[subject.fingerprint][sent.task] += 1
    pure = sum(counts.total() for counts in tasks.values() if len(counts) == 1)
    assert pure / len(requests) > 0.95


def test_a_subject_holds_no_text(chat: Chat) -> None:
    written = repr(subject_of(chat("Translate the call of Felix Deninard.", system="You work for Jansen.")))
    assert not any(word in written.lower() for word in ("felix", "deninard", "jansen", "translate", "call"))
