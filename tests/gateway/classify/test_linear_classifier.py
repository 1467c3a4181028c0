"""The trained classifier: ordinary requests, the embedded pair's own work, and prompts that try to break it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.errors import CommandError
from slipstream_core.types import Endpoint, GenerationRequest, LengthBin, Message, RequestProfile
from slipstream_engine.embedded import demo
from slipstream_engine.embedded.workload import workload
from slipstream_gateway.decide.classify import LinearClassifier, default_model, load_model, save_model
from slipstream_gateway.decide.classify.hashing import encode, features, word_rows
from slipstream_gateway.decide.classify.model import TASKS
from slipstream_tools.train.assemble import Fits, predict
from slipstream_tools.train.design import design
from slipstream_tools.train.fit import Linear
from slipstream_tools.train.heads import Heads
from slipstream_tools.train.rows import Row

MODEL = default_model()
CLASSIFIER = LinearClassifier(MODEL)
STORY = (
    "The harbour of the small town had been closed for repairs since spring. Fishermen moved their boats to the "
    "neighbouring bay, and the market stood half empty. In October the first ships came back."
)


def request(content: str, *, system: str | None = None, **fields: Any) -> GenerationRequest:
    messages = [] if system is None else [Message(role="system", content=system)]
    messages.append(Message(role="user", content=content))
    return GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=tuple(messages), **fields)


def classify(content: str, *, system: str | None = None, **fields: Any) -> RequestProfile:
    return CLASSIFIER.classify(request(content, system=system, **fields))


@pytest.mark.parametrize(
    ("task", "prompts"),
    [
        (
            "summarization",
            (
                f"Summarize the text below.\n\n{STORY}",
                f"{STORY}\n\nTL;DR?",
                f"What are the key points of this article?\n\n{STORY}",
                f"Fasse den Text zusammen.\n\n{STORY}",
                f"Peux-tu me faire un résumé de ce texte ?\n\n{STORY}",
            ),
        ),
        (
            "extraction",
            (
                f"Extract all place names as JSON.\n\n{STORY}",
                f"List every date and every person mentioned.\n\n{STORY}",
                f"Extrahiere alle Namen aus dem Text.\n\n{STORY}",
            ),
        ),
        (
            "code",
            (
                "Write a Python function that reverses a string.",
                "How do I read a file line by line in Rust?",
                "Fix the bug:\n```python\ndef f(x):\n    return x +\n```",
                "SQL query that lists all customers without an order",
            ),
        ),
        (
            "translation",
            (
                "Translate into German: The meeting is on Tuesday.",
                "How do you say 'where is the station' in French?",
                "翻译成英文：今天天气很好。",
                "Traduce al español: The train is late.",
            ),
        ),
        (
            "classification",
            (
                f"Is this review positive or negative?\n\n{STORY}",
                "Which category fits best: billing, delivery, other?\n\nMy lamp is broken.",
                "Klassifiziere die Nachricht: Rechnung, Lieferung, Sonstiges\n\nMeine Lampe ist kaputt.",
            ),
        ),
        ("short_qa", ("Who wrote Faust?", "What is the capital of Australia?", "¿Cuál es la capital de Perú?")),
        (
            "math_reasoning",
            ("Solve for x: 3x + 7 = 22", "Tom has 5 apples and buys 7 more. How many apples does he have now?"),
        ),
        (
            "creative_writing",
            ("Write a short story about a lighthouse.", "Compose an email to my landlord about the heating."),
        ),
        ("open_chat", ("How can I sleep better?", "Give me tips for a job interview.", "Explain how vaccines work.")),
        (
            "rewriting",
            (
                f"Rewrite this in a formal tone.\n\n{STORY}",
                "Fix the grammar: she don't likes him",
                f"Paraphrase: {STORY}",
            ),
        ),
    ],
)
def test_ordinary_phrasings_of_a_task_are_known(task: str, prompts: tuple[str, ...]) -> None:
    assert {prompt[:60]: str(classify(prompt).task) for prompt in prompts} == {prompt[:60]: task for prompt in prompts}


def test_the_instruction_counts_and_its_material_does_not() -> None:
    material = f"{STORY} Then the captain asked who would write the letter, and what the poem meant. {STORY} {STORY}"
    before = classify(f"Summarize the following text.\n\n{material}")
    after = classify(f"{material}\n\nSummarize the text above.")
    other = classify(f"Translate the following text into Dutch.\n\n{material}")
    assert (before.task, after.task, other.task) == ("summarization", "summarization", "translation")


def test_a_system_prompt_can_hold_the_instruction() -> None:
    assert classify(STORY, system="Summarize what the user sends.").task == "summarization"
    assert classify("my card is lost", system="Reply with one label: card, loan, other.").task == "classification"


RULES = "You work for a large bank. Never mention competitors. Do not give legal advice. Be polite. " * 8


def test_an_instruction_behind_the_rules_of_a_system_prompt_is_read() -> None:
    system = f"{RULES}\nReply to each message with one label: card, loan, other."
    assert classify("my card is lost", system=system).task == "classification"
    assert classify("my card is lost", system=f"{RULES}\nTranslate each message into French.").task == "translation"


def conversation(*contents: str, **fields: Any) -> RequestProfile:
    messages = tuple(
        Message(role=("user", "assistant")[index % 2], content=content) for index, content in enumerate(contents)
    )
    return CLASSIFIER.classify(GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages, **fields))


def test_a_short_follow_up_is_read_behind_the_message_before() -> None:
    translated = conversation(
        "Translate into German: The meeting is on Tuesday.", "Das Treffen ist am Dienstag.", "ok?"
    )
    summary = conversation(f"Summarize the text below.\n\n{STORY}", "The harbour was closed.", "shorter please")
    assert (translated.task, summary.task) == ("translation", "summarization")
    assert conversation("Translate into German: The meeting is on Tuesday.", "Ja.", "Who wrote Faust, and when was "
                        "it first performed on a stage?").task == "short_qa"  # fmt: skip


def test_a_conversation_with_long_answers_is_expected_to_go_on_so() -> None:
    question = "And what about the second of these two plans, in the same way?"
    terse, chatty = (conversation("What of the first plan?", "It is fine. " * count, question) for count in (1, 200))
    assert chatty.expected_output_tokens > 3 * terse.expected_output_tokens
    assert chatty.long_probability > terse.long_probability


def test_a_request_with_tools_is_expected_to_get_a_short_call() -> None:
    plain = classify("Tell me about the weather in Paris and what to wear.")
    offered = classify("Tell me about the weather in Paris and what to wear.", features=frozenset({"tools"}))
    forced = classify("Write a long story.", features=frozenset({"tools", "tool_choice"}))
    assert 45 < offered.expected_output_tokens < plain.expected_output_tokens
    assert forced.expected_output_tokens == 45
    result = (*request("What is the weather in Paris?").messages, Message(role="tool", content="14 degrees"))
    called = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=result, features=frozenset({"tools"}))
    unchanged = request("What is the weather in Paris?")
    assert CLASSIFIER.classify(called).expected_output_tokens == pytest.approx(
        CLASSIFIER.classify(unchanged).expected_output_tokens
    )


def test_a_guided_choice_is_a_label() -> None:
    assert classify("Write a long story.", features=frozenset({"guided_choice"})).expected_output_tokens == 3


def test_a_system_prompt_adds_the_same_when_it_comes_again() -> None:
    first = classify(STORY, system="Translate everything to French. Keep names.")
    assert classify(STORY, system="Translate everything to French. Keep names.") == first


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("Write an essay on spring in 200 words.", 270.0),
        (f"Summarize in one sentence.\n\n{STORY}", 25.0),
        (f"{STORY}\n\nIs that true? Answer yes or no.", 3.0),
        ("Write three paragraphs about tea.", 300.0),
    ],
)
def test_a_stated_length_is_what_is_expected(prompt: str, tokens: float) -> None:
    profile = classify(prompt)
    assert profile.expected_output_tokens == pytest.approx(tokens)
    assert (profile.long_probability > 0.5) == (tokens > 128)


def test_a_limit_bounds_the_length_and_is_not_the_length() -> None:
    free = classify("Write a poem about a broken elevator.")
    wide = classify("Write a poem about a broken elevator. At most 300 words.")
    tight = classify("Write a poem about a broken elevator. At most 30 words.")
    assert 0.5 * 300 * 1.35 <= wide.expected_output_tokens <= 300 * 1.35
    assert tight.expected_output_tokens <= 30 * 1.35 < free.expected_output_tokens


@pytest.mark.parametrize("topic", ["a character", "two characters", "a line of ants", "four pages that were missing"])
def test_a_mentioned_length_does_not_make_a_story_short(topic: str) -> None:
    story, plain = classify(f"Write a short story about {topic}."), classify("Write a short story about a lighthouse.")
    assert story.expected_output_tokens > 0.5 * plain.expected_output_tokens
    assert story.request_class == "creative_writing/long"


def test_longer_prompts_of_a_task_have_longer_answers() -> None:
    short, long = (classify(f"Translate into German: {STORY * count}") for count in (1, 4))
    assert long.expected_output_tokens > 3 * short.expected_output_tokens


@pytest.mark.parametrize(
    ("chances", "expected"), [((0.35, 0.35, 0.3), 100.0), ((0.0, 1.0, 0.0), 1000.0), ((0.5, 0.5, 0.0), 100.0)]
)
def test_an_uncertain_task_has_the_median_length_of_its_candidates(chances: tuple[float, ...], expected: float) -> None:
    """The words have no weight."""
    lengths = np.zeros_like(MODEL.lengths)
    lengths[0, :3] = np.log([10.0, 1000.0, 100.0])
    bias = np.full_like(MODEL.bias, -50.0)
    bias[:3] = np.log(np.maximum(chances, 1e-9)) * MODEL.temperature
    bias[len(TASKS) :] = 0.0
    model = replace(MODEL, table=np.zeros_like(MODEL.table), bias=bias, lengths=lengths)
    assert LinearClassifier(model).classify(request("anything")).expected_output_tokens == pytest.approx(
        expected, rel=0.01
    )


def test_max_tokens_caps_the_length() -> None:
    profile = classify("Write an essay on spring in 900 words.", max_tokens=64)
    assert profile.expected_output_tokens == 64.0
    assert profile.long_probability == 0.0


def test_the_demo_prompts_come_out_as_what_they_are() -> None:
    summary, status, extraction = (
        CLASSIFIER.classify(
            request(messages[-1]["content"]),
        )
        for messages in (demo.CALL_SUMMARY, demo.ONE_LINE_STATUS, demo.EXTRACTION)
    )
    assert summary.request_class == "summarization/long"
    assert status.length is LengthBin.SHORT
    assert extraction.task == "extraction"
    assert extraction.rare_probability > 0.5 > summary.rare_probability


def test_the_embedded_pairs_own_work_is_known() -> None:
    wanted = {
        "summary": {"summarization"},
        "json": {"extraction"},
        "extraction": {"extraction"},
        "label": {"classification"},
        "status": {"short_qa"},
        "python": {"code"},
        "sql": {"code"},
    }
    right: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for item in workload(11, 250):
        if item.task in wanted:
            messages = tuple(Message(role=message["role"], content=message["content"]) for message in item.messages)
            profile = CLASSIFIER.classify(GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages))
            seen[item.task] += 1
            right[item.task] += profile.task in wanted[item.task]
    assert {task: right[task] / seen[task] >= 0.8 for task in wanted} == dict.fromkeys(wanted, True)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=400), system=st.text(max_size=80), json=st.booleans(), cap=st.none() | st.integers(1, 500))
def test_no_text_makes_it_fail(text: str, system: str, json: bool, cap: int | None) -> None:
    profile = classify(text, system=system, structured_output=json, max_tokens=cap)
    for share in (profile.confidence, profile.long_probability, profile.rare_probability, profile.rare_token_share):
        assert 0.0 <= share <= 1.0
    assert 0.0 < profile.expected_output_tokens < 10_000
    assert profile.prompt_tokens > 0


@pytest.mark.parametrize(
    "odd",
    ["", " ", "\ud800\udfff", "\x00" * 50, "\n" * 999, "é" * 700, "。" * 700, "a" * 4_000_000, "İ" * 700, "1" * 700],
)
def test_odd_prompts_have_a_profile(odd: str) -> None:
    assert 0.0 <= CLASSIFIER.explain(request(odd, system=odd[:300])).confidence <= 1.0


def test_a_prompt_of_token_ids_has_a_profile() -> None:
    profile = CLASSIFIER.classify(GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt=(1, 2, 3)))
    assert profile.prompt_tokens == 3


def test_the_count_of_tokens_is_near_for_prose() -> None:
    assert classify(STORY).prompt_tokens == pytest.approx(42, rel=0.2)
    assert classify(STORY * 40).prompt_tokens == pytest.approx(37 * 40, rel=0.2)


def test_evidence_names_the_words_that_decided() -> None:
    explained = CLASSIFIER.explain(request("Please translate this into Polish: good evening", max_tokens=2))
    assert explained.evidence[0].startswith("task translation: ")
    assert "translate" in explained.evidence[0]
    assert explained.evidence[-1] == "max_tokens 2 caps the length"
    plain = CLASSIFIER.classify(request("Please translate this into Polish: good evening", max_tokens=2))
    assert (plain.evidence, plain.task, plain.confidence) == ((), explained.task, explained.confidence)


@pytest.mark.integration
def test_every_process_has_the_same_features() -> None:
    code = "from slipstream_gateway.decide.classify.hashing import *; "
    code += "print(features(encode('Sum: a b é 今')).rows.tolist())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "77")
    }
    assert len(outputs) == 1
    found = features(encode("Sum: a b é 今"))
    assert outputs == {f"{found.rows.tolist()}\n".encode()}


def test_words_are_hashed_whatever_stands_around_them() -> None:
    one, other = features(encode("Translate this")), features(encode("ok!  «translate (THIS»"))
    assert set(word_rows(one).tolist()) < set(word_rows(other).tolist())


def test_pairs_of_characters_are_the_words_of_scripts_without_spaces() -> None:
    def words(text: str) -> list[str]:
        data = encode(text)
        found = features(data)
        return [data[begin:end].decode() for begin, end in zip(found.begins, found.ends, strict=True)]

    assert words("翻译成英文：天气") == ["翻译", "译成", "成英", "英文", "天气"]
    assert words("Translate 你好world, 今 please") == ["translate", "你好", "world", "今", "please"]
    assert words("「訳して」") == ["訳し", "して"]
    assert words("แปล ok") == ["แป", "ปล", "ok"]
    assert words("Où est l'été ?") == ["où", "est", "l'été"]


def test_the_same_instruction_in_chinese_is_known_around_any_material() -> None:
    for material in ("今天天气很好。", "订单已经发货，请耐心等待。", "我们明天开会讨论预算。"):
        assert classify(f"把这句话翻译成英文：{material}").task == "translation"
        assert classify(f"{material}\n\n请用一句话总结以上内容。").task == "summarization"


def test_a_long_chinese_prompt_keeps_its_end() -> None:
    text = "气" * 500 + "\n" + "天" * 248 + "英文"
    found = features(encode(text))
    assert encode(text)[found.begins[-1] : found.ends[-1]].decode() == "英文"


def test_names_and_amounts_in_a_prompt_make_a_rare_answer_likelier() -> None:
    plain = classify("List what was said in the letter.\n\nthe parcel came late and the lamp was broken, says the man")
    names = classify(
        "List what was said in the letter.\n\nAnna Brandt paid 39.90 on 12.05.2024 to Omar Haddad, 17.20 to Li Wei"
    )
    assert names.rare_probability > plain.rare_probability + 0.1


def test_a_word_counts_once_however_often_it_comes() -> None:
    once, often = classify("Translate translate to Polish"), classify("Translate translate translate to Polish")
    assert often.confidence == pytest.approx(once.confidence, abs=1e-6)


def test_the_fit_sees_what_the_classifier_computes() -> None:
    row = Row(request=request(f"Summarize the text.\n\n{STORY}", system="You work in a harbour."), source="desk")
    tasks, words = len(TASKS), MODEL.table[:, len(TASKS) :]
    heads = Heads(words, MODEL.bias[tasks:], MODEL.counts, MODEL.by_task, MODEL.lengths, MODEL.shares, ())
    fits = Fits(Linear(MODEL.table[:, :tasks], MODEL.bias[:tasks]), heads)
    wanted = predict(fits, design([row]), MODEL.temperature)
    profile = CLASSIFIER.classify(row.request)
    assert profile.confidence == pytest.approx(wanted.tasks.max(), abs=1e-4)
    assert profile.long_probability == pytest.approx(wanted.long[0], abs=1e-4)
    assert profile.rare_probability == pytest.approx(wanted.rare[0], abs=1e-4)
    assert profile.speculate_probability == pytest.approx(wanted.speculate[0], abs=1e-4)
    assert profile.expected_output_tokens == pytest.approx(wanted.tokens[0], abs=0.1)


def test_the_shipped_model_is_small() -> None:
    shipped = Path(sys.modules[LinearClassifier.__module__].__file__ or "").with_name("model.npz")
    assert shipped.stat().st_size <= 1_000_000


def test_eight_bits_are_as_good_as_floats(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.001, MODEL.table.shape).astype(np.float32)
    model = replace(MODEL, table=MODEL.table + noise)
    save_model(model, tmp_path / "model.npz")
    coarse, fine = LinearClassifier(load_model(tmp_path / "model.npz")), LinearClassifier(model)
    for item in workload(3, 40):
        one = request(item.messages[-1]["content"])
        assert coarse.classify(one).confidence == pytest.approx(fine.classify(one).confidence, abs=0.05)


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    with pytest.raises(CommandError, match=r"model\.npz: cannot be read: No such file"):
        load_model(path)
    path.write_bytes(b"not a model")
    with pytest.raises(CommandError, match="not a classifier"):
        load_model(path)
    np.savez(path, table=np.zeros(3))
    with pytest.raises(CommandError, match="it lacks bias"):
        load_model(path)
    path.write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(CommandError, match="not a classifier"):
        load_model(path)
    save_model(default_model(), path)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 2000] = b"\xff" * 2000
    path.write_bytes(whole)
    with pytest.raises(CommandError, match="not a classifier"):
        load_model(path)
    save_model(default_model(), path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **{**arrays, "bias": arrays["bias"].astype("U")})
    with pytest.raises(CommandError, match="not a classifier"):
        load_model(path)
