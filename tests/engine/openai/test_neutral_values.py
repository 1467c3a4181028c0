"""What the gateway takes for a value without effect, the engine accepts, too: it gets the client's body."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from slipstream_engine.openai.errors import Refusal
from slipstream_engine.openai.request.body import ChatBody, CompletionBody, decode
from slipstream_gateway.api import features

VALUES: tuple[Any, ...] = (
    None, False, True, 0, 1, 0.0, 1.0, -1, "", "none", "auto", "disabled", [], ["text"], {}, {"type": "text"},
)  # fmt: skip
CASES = [
    (name, value)
    for name, value in itertools.product(sorted(features._NEUTRAL), VALUES)
    if features._is_neutral(name, json.dumps(value).encode())  # type: ignore[arg-type]
]


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_value_without_effect_is_accepted(kind: type[Any], name: str, value: Any) -> None:
    decode(json.dumps({"model": "m", name: value}).encode(), kind)


def test_there_are_cases_for_every_name() -> None:
    assert {name for name, _ in CASES} == set(features._NEUTRAL)


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("best_of", 2), ("length_penalty", 0.5)])
def test_others_are_not(name: str, value: Any) -> None:
    with pytest.raises(Refusal) as refused:
        decode(json.dumps({name: value}).encode(), ChatBody)
    assert refused.value.param == name
