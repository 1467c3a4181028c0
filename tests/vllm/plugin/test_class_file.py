"""The file of classes: what it may say, which rule matches, and what happens when it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from slipstream_vllm.class_file import MAX_BYTES, POLL_S, ClassFile
from slipstream_vllm.class_lengths import ENOUGH_DRAFTED, ClassLengths
from slipstream_vllm.classes import ClassFileError, Traits, parse

from tests.support.clock import Clock

MOST = 4
CHAT = Traits(endpoint="chat", model="m", max_tokens=100, tools=False, response_format=False)
ONE = "classes: {chat: {length: 1}}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is None; a mapping is required."),
        ("[1]", "the file is [1]; a mapping is required."),
        ("a: [", "the file is not YAML: "),
        ("a: 2026-99-99", "the file is not YAML: month must be in 1..12"),
        ("[" * 5000, "the file is not YAML: "),
        ("class: {}", "the file has the unknown field 'class'; known fields: classes, rules."),
        ("rules: []", "classes is None; a mapping with at least one class is required."),
        ("classes: {}", "classes is {}; a mapping with at least one class is required."),
        ("classes: {A b: {length: 1}}", "a name in classes is 'A b'; 'task' or 'task/length'"),
        ("classes: {1: {length: 1}}", "a name in classes is 1; 'task' or 'task/length'"),
        ("classes: {chat: 3}", "classes.chat is 3; a mapping is required."),
        ("classes: {chat: {}}", "classes.chat.length is None; an integer from 0 to 4"),
        ("classes: {chat: {length: 5}}", "classes.chat.length is 5; an integer from 0 to 4"),
        ("classes: {chat: {length: -1}}", "classes.chat.length is -1; an integer from 0 to 4"),
        ("classes: {chat: {length: true}}", "classes.chat.length is True; an integer from 0 to 4"),
        ("classes: {chat: {length: 2.0}}", "classes.chat.length is 2.0; an integer from 0 to 4"),
        ("classes: {chat: {lenght: 2}}", "classes.chat has the unknown field 'lenght'"),
        (
            "classes: {chat: {length: 1, min_acceptance: 1.5}}",
            "classes.chat.min_acceptance is 1.5; a number from 0 to 1",
        ),
        ("classes: {chat: {length: 1, min_acceptance: .nan}}", "classes.chat.min_acceptance is nan; a number"),
        ("classes: {chat: {length: 1, max_running: -2}}", "classes.chat.max_running is -2; an integer of at least 0"),
        (ONE + "rules: {}", "rules is {}; a list is required."),
        (ONE + "rules: [chat]", "rules[0] is 'chat'; a mapping is required."),
        (ONE + "rules: [{class: chat}, {class: code}]", "rules[1].class is 'code'; a name in classes is required."),
        (ONE + "rules: [{model: m}]", "rules[0].class is None; a name in classes is required."),
        (ONE + "rules: [{class: chat, header: x}]", "rules[0] has the unknown field 'header'"),
        (ONE + "rules: [{class: chat, endpoint: chats}]", "rules[0].endpoint is 'chats'; one of chat, completions"),
        (ONE + "rules: [{class: chat, model: 7}]", "rules[0].model is 7; a text is required."),
        (ONE + "rules: [{class: chat, tools: 1}]", "rules[0].tools is 1; true or false is required."),
        (ONE + "rules: [{class: chat, max_tokens: 64}]", "rules[0].max_tokens is 64; a list of the smallest"),
        (ONE + "rules: [{class: chat, max_tokens: [a, 1]}]", "rules[0].max_tokens is 'a'; an integer of at least 0"),
        (ONE + "rules: [{class: chat, max_tokens: [2, 1]}]", "rules[0].max_tokens is [2, 1]; the first number must"),
    ],
)
def test_a_broken_file_is_refused_with_field_and_value(text: str, problem: str) -> None:
    with pytest.raises(ClassFileError) as refused:
        parse(text, MOST)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("rule", "matching", "other"),
    [
        ("endpoint: chat", CHAT, CHAT._replace(endpoint="completions")),
        ("model: m", CHAT, CHAT._replace(model="n")),
        ("tools: true", CHAT._replace(tools=True), CHAT),
        ("tools: false", CHAT, CHAT._replace(tools=True)),
        ("response_format: true", CHAT._replace(response_format=True), CHAT),
        ("max_tokens: [100, 100]", CHAT, CHAT._replace(max_tokens=101)),
        ("max_tokens: [100, null]", CHAT, CHAT._replace(max_tokens=99)),
        ("max_tokens: [null, 100]", CHAT, CHAT._replace(max_tokens=None)),
        ("endpoint: chat, tools: true", CHAT._replace(tools=True), CHAT),
    ],
)
def test_a_rule_matches_requests_with_all_its_traits(rule: str, matching: Traits, other: Traits) -> None:
    classes = parse(f"{ONE}rules: [{{class: chat, {rule}}}]", MOST)
    assert classes.label(matching) == "chat"
    assert classes.label(other) is None


def test_the_first_matching_rule_applies() -> None:
    text = "classes: {a: {length: 1}, b: {length: 2}}\nrules: [{class: b, tools: true}, {class: a}]"
    classes = parse(text, MOST)
    assert [classes.label(CHAT), classes.label(CHAT._replace(tools=True))] == ["a", "b"]


def test_a_broken_version_keeps_the_previous_one_and_is_reported_once(tmp_path: Path) -> None:
    path, clock, reports = tmp_path / "classes.yaml", Clock(), list[str]()
    path.write_text(ONE)
    file = ClassFile(path, MOST, reports.append, clock)
    first = file.current()

    path.write_text("classes: {chat: {length: 40}}")
    assert file.current() is first
    for _ in range(3):
        clock.now_s += POLL_S
        assert file.current() is first
    assert (
        file.problem
        == "classes.chat.length is 40; an integer from 0 to 4 (num_speculative_tokens of this server) is required."
    )
    assert len(reports) == 1
    assert str(path) in reports[0]

    path.unlink()
    clock.now_s += POLL_S
    assert file.current() is first
    assert file.problem == "the file cannot be read: No such file or directory."

    replacement = tmp_path / "new"
    replacement.write_text("classes: {chat: {length: 3}}")
    os.replace(replacement, path)
    clock.now_s += POLL_S
    assert file.current().lengths["chat"].length == 3
    assert file.problem is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "the file cannot be read: No such file or directory."),
        (b"\xff", "the file is not UTF-8: byte 0 is 0xff."),
        (b" " * (MAX_BYTES + 1), f"the file has more than {MAX_BYTES} bytes."),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "classes.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClassFileError) as refused:
        ClassFile(path, MOST)
    assert str(refused.value) == problem


@pytest.fixture
def lengths(tmp_path: Path) -> ClassLengths:
    path = tmp_path / "classes.yaml"
    path.write_text(
        "classes: {a: {length: 3, min_acceptance: 0.5}, b: {length: 2, max_running: 8}, unlabelled: {length: 1}}"
    )
    return ClassLengths(ClassFile(path, MOST), MOST)


def test_each_class_has_its_length(lengths: ClassLengths) -> None:
    lengths.begin_step(running=1)
    assert [lengths.present(label) for label in ("a", "b", None, "c")] == [
        (3, "file"),
        (2, "file"),
        (1, "file"),
        (4, "server"),
    ]


def test_load_above_the_threshold_stops_drafts(lengths: ClassLengths) -> None:
    lengths.begin_step(running=8)
    assert lengths.present("b") == (2, "file")
    lengths.begin_step(running=9)
    assert [lengths.present("b"), lengths.present("a")] == [(0, "threshold"), (3, "file")]


def test_low_acceptance_stops_drafts_until_they_are_tried_again(lengths: ClassLengths) -> None:
    lengths.verified("a", ENOUGH_DRAFTED, ENOUGH_DRAFTED // 2)
    assert lengths.present("a") == (3, "file")
    lengths.verified("a", ENOUGH_DRAFTED, ENOUGH_DRAFTED // 2 - 1)
    assert lengths.present("a") == (0, "threshold")
    steps = 0
    while lengths.present("a") == (0, "threshold"):
        lengths.begin_step(running=1)
        steps += 1
        assert steps <= 1024
    assert steps > 1
