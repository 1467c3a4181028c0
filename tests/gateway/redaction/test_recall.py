"""The share of planted secrets that do not reach the store.

The rules were written with the texts of `development.yaml`. Those of `held_out.yaml` are older than the rules, and four
of their five languages are others. `pytest -s` prints the shares with their intervals (Wilson, 95 %).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest
from slipstream_core.manifest.capture import Capture
from slipstream_gateway.capture.redaction.redactor import Redactor
from slipstream_gateway.capture.rows import row_of

from tests.gateway.capture.captures import captured
from tests.gateway.redaction.leaks import is_shown
from tests.gateway.redaction.planting import Planted, planted

OF_EACH_KIND = 200
FOLDER = Path(__file__).parent
GOAL = 0.99


def _said(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts] if len(texts) > 1 else texts[0]}


def _placed(text: str, rng: random.Random) -> tuple[Sequence[dict[str, Any]], str]:
    """The messages of a request that has `text` somewhere, and the answer."""
    one, other = sorted(rng.sample(range(len(text) + 1), 2))
    match rng.randrange(10):
        case 0:
            return [_said("user", "Show me the file.")], text
        case 1:
            return [_said("system", text), _said("user", "Hi")], "Hello."
        case 2:
            call = {
                "id": "c1",
                "type": "function",
                "function": {"name": "send", "arguments": json.dumps({"body": text})},
            }
            return [_said("user", "Send it."), {"role": "assistant", "content": None, "tool_calls": [call]}], "Sent."
        case 3:
            return [_said("user", text[:one], text[one:other], text[other:])], "I see."
        case 4:
            return [_said("user", text[:one]), _said("user", text[one:])], "I see."
        case _:
            return [_said("system", "Be short."), _said("user", text)], "I see."


def _stored(text: str, redactor: Redactor, rng: random.Random) -> str:
    """All texts of the row that is stored of a request with `text`."""
    messages, answer = _placed(text, rng)
    row = row_of(captured(answer, body={"model": "acme", "messages": messages}), redactor)
    assert row["redactions"] == 0 or row["token_ids"] is None
    return "\n".join([*_strings(json.loads(row["request"])), row["answer"]])


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, list | dict):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _strings(each)


def _hidden(templates: Path, seed: int) -> tuple[Counter[str], Counter[str]]:
    """The number of planted secrets of each kind and language, and of those of which the store shows nothing."""
    redactor, rng = Redactor(Capture()), random.Random(seed)
    total: Counter[str] = Counter()
    hidden: Counter[str] = Counter()
    each: Planted
    for each in planted(templates, OF_EACH_KIND, seed):
        names = ("all", each.kind, each.language)
        total.update(names)
        if not is_shown(each, _stored(each.text, redactor, rng)):
            hidden.update(names)
    return total, hidden


@pytest.mark.parametrize(("templates", "seed"), [("development", 11), ("held_out", 12)])
def test_planted_secrets_do_not_reach_the_store(templates: str, seed: int) -> None:
    total, hidden = _hidden(FOLDER / f"{templates}.yaml", seed)
    for name, count in total.items():
        interval = binomtest(hidden[name], count).proportion_ci(method="wilson")
        print(f"{templates} {name}: {hidden[name]} of {count}, {interval.low:.4f} to {interval.high:.4f}")
    assert total["all"] >= 3000
    assert len(total) >= 1 + 12 + 5  # kinds and languages
    assert hidden["all"] / total["all"] >= GOAL
