"""The classifier by rules: ordinary requests, the embedded pair's own work, and prompts that try to break it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_engine.embedded import corpus
from slipstream_gateway.classify import RuleClassifier
from slipstream_gateway.types import Endpoint, GenerationRequest, LengthBin, Message, RequestProfile, TaskType

CALL = (
    "Agent: Good morning, how can I help you?\n"
    "Customer: Hello, my router has been dropping the line since Tuesday.\n"
    "Agent: I am sorry to hear that. Let me check the line.\n"
    "Customer: Thank you.\n"
    "Agent: I have restarted the port, it is stable now.\n"
) * 4
CONTRACTS = (
    "Contract K-48213 of Maria Jansen, the amount is 1,290.00 EUR, due on 12 March 2026. "
    "Peter Novak has to pay 88.50 EUR for contract K-99120 by 1 April 2026."
)


def classify(content: str, *, system: str | None = None, **fields: Any) -> RequestProfile:
    messages = (Message(role="user", content=content),)
    if system is not None:
        messages = (Message(role="system", content=system), *messages)
    return RuleClassifier().classify(GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages, **fields))


@pytest.mark.parametrize(
    ("prompt", "task", "length"),
    [
        (f"Summarise this call for the CRM.\n\n{CALL}", "summarization", "long"),
        (f"{CALL}\nPlease give me a structured summary of the conversation above.", "summarization", "long"),
        (f"TL;DR\n\n{CALL}", "summarization", "medium"),
        (f"Summarize the text in one sentence.\n\n{CALL}", "summarization", "short"),
        ("Fasse den folgenden Text zusammen:\n\nDer Kunde rief wegen des Routers an.", "summarization", "medium"),
        (f"Extract all contract numbers, names and amounts from this letter.\n{CONTRACTS}", "extraction", None),
        (f"Return the ticket fields as JSON.\n\n{CONTRACTS}", "extraction", "medium"),
        (f"Fill this schema: {{'name': 'string'}}\n\n{CONTRACTS}", "extraction", None),
        ("Write a Python function that merges two sorted lists.", "code", "medium"),
        ("I need a SQL query that counts orders per city.\n\nCREATE TABLE orders (id INTEGER);", "code", "medium"),
        ("Fix the bug:\n```python\ndef f(x):\n    return x +\n```", "code", None),
        ("Write a regex that matches IPv4 addresses.", "code", None),
        ("Translate into German: The meeting is on Tuesday.", "translation", "short"),
        ("How do you say 'where is the station' in French?", "translation", "short"),
        ("请把下面的句子翻译成英文。今天天气很好。", "translation", "short"),
        (
            "Classify this message. Options: billing, delivery.\n\nMy lamp is broken.",
            "classification",
            "short",
        ),
        ("Is this review positive or negative? Answer with one word.\nI loved it.", "classification", "short"),
        ("What is the capital of Australia?", "short_qa", "short"),
        ("What is the status of order 4711?\nOrder 4711: lamp, status: in transit", "short_qa", "short"),
        ("Who wrote The Magic Mountain?", "short_qa", "short"),
        ("Tom has 12 apples and buys 30 more. How many apples does he have now?", "math_reasoning", "long"),
        ("Solve the equation x^2 - 5x + 6 = 0.", "math_reasoning", "long"),
        ("Write a short story about a lighthouse keeper.", "creative_writing", "long"),
        ("Compose a haiku about autumn.", "creative_writing", "short"),
        ("Write a blog post about remote work in 600 words.", "creative_writing", "long"),
        ("Explain how photosynthesis works.", "open_chat", "long"),
        ("How do I get better at chess?", "open_chat", "long"),
        ("Why do some people like horror films?", "open_chat", "long"),
        ("Rewrite this in a more formal tone: hey, the thing is broken again", "rewriting", "short"),
        ("Write a polite reply to this customer message.\n\nHello, my lamp is broken. Regards, Ann", "rewriting", None),
        ("Correct the grammar: She go to school every days.", "rewriting", "short"),
    ],
)
def test_ordinary_requests_are_known(prompt: str, task: str, length: str | None) -> None:
    found = classify(prompt)
    assert found.task == task, found.evidence
    assert length is None or found.length == length, found.evidence
    assert found.confidence >= 0.4


@pytest.mark.parametrize("prompt", ["", " ", "\n\n", "...", "4711", "lorem ipsum dolor sit amet"])
def test_a_request_that_says_nothing_is_unknown(prompt: str) -> None:
    found = classify(prompt)
    assert found.task is TaskType.UNKNOWN
    assert found.confidence == 0.0


def test_the_instruction_may_stand_in_the_system_prompt() -> None:
    found = classify(CALL, system="Summarise the call with the usual sections.")
    assert found.request_class == "summarization/long"


@pytest.mark.parametrize(
    ("instruction", "tokens"),
    [
        ("Describe the sea in 200 words.", 280),
        ("Describe the sea in exactly three short sentences.", 75),
        ("Describe the sea in a 200-word essay.", 280),
        ("Describe the sea in one word.", 1.4),
        ("Give me 5 tips. Explain each in 2 sentences.", 160),
        ("Write a one-line status.", 22),
    ],
)
def test_a_length_that_is_asked_for_is_expected(instruction: str, tokens: float) -> None:
    assert classify(instruction).expected_output_tokens == pytest.approx(tokens, rel=0.3)


def test_a_length_that_the_material_talks_of_is_not_expected() -> None:
    talk = CALL.replace("Let me check the line.", "I will send you a tweet of one sentence in 20 words.")
    assert classify(f"Summarise this call.\n\n{talk}").length is LengthBin.LONG


def test_max_tokens_caps_the_expectation_and_says_so() -> None:
    prompt = f"Summarise this call.\n\n{CALL}"
    capped = classify(prompt, max_tokens=30)
    assert capped.expected_output_tokens == 30
    assert capped.length is LengthBin.SHORT
    assert "max_tokens 30 caps it" in capped.evidence
    assert classify(prompt, max_tokens=4000) == classify(prompt)


def test_words_like_detailed_and_brief_move_the_expectation() -> None:
    usual = classify("Explain how tides work.").expected_output_tokens
    assert classify("Explain in detail how tides work.").expected_output_tokens > usual
    assert classify("Explain briefly how tides work.").expected_output_tokens < usual


def test_answers_full_of_numbers_and_names_are_rare_and_summaries_are_not() -> None:
    rare = classify(f"List all contract numbers, names, amounts and dates.\n{CONTRACTS}")
    assert rare.rare_token_share > 0.3
    assert any("asks for" in line for line in rare.evidence)
    assert classify(f"Summarise this call.\n\n{CALL}").rare_token_share < 0.12


def test_structured_output_is_seen_in_the_request_and_in_the_words() -> None:
    assert classify("List three colours.", structured_output=True).structured_output
    assert classify("List three colours as JSON.").structured_output
    assert not classify("List three colours.").structured_output


def test_a_prompt_of_token_ids_is_counted_and_unknown() -> None:
    request = GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=(1, 2, 3))
    found = RuleClassifier().classify(request)
    assert (found.prompt_tokens, found.task) == (3, TaskType.UNKNOWN)


def test_a_completion_prompt_is_read_like_a_message() -> None:
    request = GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt="Translate to French: good night")
    assert RuleClassifier().classify(request).task is TaskType.TRANSLATION


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # counted with a byte-pair encoding of 100,000 entries
        ("The quick brown fox jumps over the lazy dog. " * 20, 200),
        ("The invoice 2024-118 over 1,290.00 EUR is due on 12 March.\n" * 20, 460),
        ("def add(first, second):\n    return first + second\n" * 20, 220),
    ],
)
def test_prompt_tokens_are_estimated_well_enough(text: str, tokens: int) -> None:
    assert classify(text).prompt_tokens == pytest.approx(tokens, rel=0.2)


def test_prompt_tokens_grow_with_the_whole_conversation() -> None:
    turns = tuple(Message(role=role, content=CALL) for role in ("user", "assistant") * 10)
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=turns)
    one = classify(CALL).prompt_tokens
    assert RuleClassifier().classify(request).prompt_tokens == pytest.approx(20 * one, rel=0.05)


def test_the_middle_of_a_long_prompt_is_not_read() -> None:
    filler = "The weather was fine and the train was late. " * 400
    other = "Translate this poem and write code for it now. " * 400
    prompts = [f"Summarise this call.\n\n{CALL * 3}{middle}{CALL}" for middle in (filler, other)]
    first, second = (classify(prompt) for prompt in prompts)
    assert first.task is second.task is TaskType.SUMMARIZATION
    assert first.confidence == second.confidence


def test_an_instruction_at_the_end_of_a_long_prompt_is_found() -> None:
    filler = "The weather was fine and the train was late.\n" * 2000
    assert classify(f"{filler}\nClassify this text. Options: news, diary.").task is TaskType.CLASSIFICATION


# task of the corpus -> (the task that it must be known as, share of examples at least)
_CORPUS = {
    "summary": (TaskType.SUMMARIZATION, 0.95),
    "json": (TaskType.EXTRACTION, 0.9),
    "extraction": (TaskType.EXTRACTION, 0.9),
    "reply": (TaskType.REWRITING, 0.9),
    "sql": (TaskType.CODE, 0.95),
    "python": (TaskType.CODE, 0.9),
    "status": (TaskType.SHORT_QA, 0.9),
    "label": (TaskType.CLASSIFICATION, 0.95),
}


@pytest.mark.parametrize("name", list(_CORPUS))
def test_the_embedded_pairs_own_work_is_known(name: str) -> None:
    task, share = _CORPUS[name]
    found: Counter[str] = Counter()
    for index in range(100):
        example = corpus.example(11, index, "held_out", {name: 1.0})
        messages = tuple(Message(role=m.role, content=m.content) for m in example.messages)
        request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages)
        found[RuleClassifier().classify(request).task] += 1
    assert found[task] >= 100 * share, found


HOSTILE = [
    "a" * 1_000_000,
    "A" * 1_000_000,
    "1" * 1_000_000,
    "Aa " * 300_000,
    "\x00" * 100_000,
    "\ud800" * 10_000,
    "🙂" * 100_000,
    "?" * 500_000,
    "one " * 200_000,
    "\n" * 500_000,
    "9" * 5000 + " words",
    "²³ words in ٣ sentences",
    "Summarise\u2028this\u0000call",
]


@pytest.mark.parametrize("prompt", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_prompts_give_a_sane_profile(prompt: str) -> None:
    assert_sane(classify(prompt, system=prompt))


@settings(max_examples=200, deadline=None)
@given(
    content=st.text(st.characters(codec=None, exclude_categories=()), max_size=3000),
    system=st.none() | st.text(max_size=200),
    max_tokens=st.none() | st.integers(1, 2**31),
)
def test_any_text_gives_the_same_sane_profile_twice(content: str, system: str | None, max_tokens: int | None) -> None:
    found = classify(content, system=system, max_tokens=max_tokens)
    assert_sane(found)
    assert classify(content, system=system, max_tokens=max_tokens) == found


def assert_sane(found: RequestProfile) -> None:
    assert 0 <= found.rare_token_share <= 1
    assert 0 <= found.confidence <= 1
    assert 0 < found.expected_output_tokens < 100_000_000
    assert found.prompt_tokens >= 0
    assert found.evidence
    assert all(len(line) < 500 for line in found.evidence)
