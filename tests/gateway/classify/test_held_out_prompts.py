"""Prompts in new wordings, written after the phrasings of the training and never trained or tuned on.

`prompts.jsonl` has a prompt per line, optionally with its system prompt: contact centre, service code, developers,
several languages. `task` is its label, `alternatives` are other labels that a reasonable person would accept.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.classify.model import TASKS

_PROMPTS = [json.loads(line) for line in Path(__file__).with_name("prompts.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def predicted() -> list[str]:
    classifier = LinearClassifier(default_model())
    found = []
    for prompt in _PROMPTS:
        system = [Message(role="system", content=prompt["system"])] if "system" in prompt else []
        messages = (*system, Message(role="user", content=prompt["prompt"]))
        found.append(
            str(classifier.classify(GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=messages)).task)
        )
    return found


def test_every_task_has_prompts_and_labels_are_tasks() -> None:
    assert all(count >= 6 for count in Counter(prompt["task"] for prompt in _PROMPTS).values())
    assert {prompt["task"] for prompt in _PROMPTS} == set(TASKS)
    assert {label for prompt in _PROMPTS for label in prompt["alternatives"]} <= set(TASKS)


def test_seven_in_ten_are_classified_as_a_person_would(predicted: list[str]) -> None:
    """48 of 67 with alternatives and 45 without when the model was trained; the earlier model had 34 and 31."""
    labels = [(prompt["task"], prompt["alternatives"]) for prompt in _PROMPTS]
    strict = sum(task == label for task, (label, _) in zip(predicted, labels, strict=True))
    accepted = sum(task == label or task in others for task, (label, others) in zip(predicted, labels, strict=True))
    assert accepted >= 46
    assert strict >= 43


def test_no_task_swallows_the_others(predicted: list[str]) -> None:
    wanted = Counter(prompt["task"] for prompt in _PROMPTS)
    for task, count in Counter(predicted).items():
        assert count <= 2 * wanted[task]
