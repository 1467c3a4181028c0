"""Checks of answers against an example's facts, as pure functions.

`check(example, answer)` returns named scores in [0, 1]. The first score of each task rates the form of the answer, the
others rate its content.
"""

from __future__ import annotations

import ast
import json
import sqlite3
from collections.abc import Callable, Mapping

from slipstream_engine.embedded.corpus import Example, Task
from slipstream_engine.embedded.corpus.tickets import JSON_FIELDS

Scores = dict[str, float]
Facts = Mapping[str, str]
_SECTIONS = (
    "Reason for contact:", "Customer:", "Customer issue:", "Agent actions:", "Outcome:", "Next step:",
    "Sentiment:",
)  # fmt: skip


def check(example: Example, answer: str) -> Scores:
    """Scores of `answer`, by name. The example's own answer has 1.0 in all of them."""
    return _CHECKS[example.task](example.facts, answer.strip())


def _summary(facts: Facts, answer: str) -> Scores:
    lines = answer.splitlines()
    sections = [line.split(":")[0] + ":" for line in lines if not line.startswith("- ")]
    return {
        "sections": float(sections == list(_SECTIONS) and any(line.startswith("- ") for line in lines)),
        "reason": float(f"Reason for contact: {facts['reason']}" in lines),
        "customer": float(f"Customer: {facts['customer']}, account {facts['account']}" in lines),
    }


def _json(facts: Facts, answer: str) -> Scores:
    try:
        record = json.loads(answer)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        return {"parses": 0.0, "fields": 0.0, "right_values": 0.0}
    right = [str(record.get(name)) == value for name, value in facts.items()]
    return {
        "parses": 1.0,
        "fields": float(tuple(record) == JSON_FIELDS),
        "right_values": sum(right) / len(right),
    }


def _reply(facts: Facts, answer: str) -> Scores:
    return {
        "letter": float(answer.startswith("Dear ") and answer.endswith("Your customer service team")),
        "reason": float(facts["reason_sentence"] in answer),
        "customer": float(answer.startswith(f"Dear {facts['customer']},")),
        "order": float(f"order {facts['order']}." in answer),
    }


def _sql(facts: Facts, answer: str) -> Scores:
    return {
        "parses": float(sql_parses(facts["schema"], answer)),
        "same_query": float(answer.split() == facts["sql"].split()),
    }


def sql_parses(schema: str, query: str) -> bool:
    """Whether SQLite accepts the single statement `query` for the tables of `schema`."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(schema)
        connection.execute(f"EXPLAIN {query}")
    except (sqlite3.Error, sqlite3.Warning):
        return False
    finally:
        connection.close()
    return True


def _python(facts: Facts, answer: str) -> Scores:
    try:
        tree = ast.parse(answer)
    except (SyntaxError, ValueError):
        return {"compiles": 0.0, "function": 0.0, "same_code": 0.0}
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    same = ast.dump(tree) == ast.dump(ast.parse(facts["code"]))
    return {"compiles": 1.0, "function": float(names == [facts["name"]]), "same_code": float(same)}


def _status(facts: Facts, answer: str) -> Scores:
    return {
        "one_line": float(answer.startswith("Order ") and "\n" not in answer),
        "order": float(answer.startswith(f"Order {facts['order']} ")),
        "same_line": float(answer == facts["line"]),
    }


def _label(facts: Facts, answer: str) -> Scores:
    label = answer.lower().rstrip(".")
    return {
        "from_the_list": float(label in facts["options"].split("|")),
        "right_label": float(label == facts["label"]),
    }


def _extraction(facts: Facts, answer: str) -> Scores:
    values = facts["values"].split("|")
    copied = sum(value in answer for value in values)
    lines = answer.splitlines()
    return {
        "list": float(bool(lines) and all(line.startswith("- Contract ") for line in lines)),
        "values_copied": copied / len(values),
        "all_copied": float(copied == len(values)),
    }


def _notes(facts: Facts, answer: str) -> Scores:
    return {
        "prose": float(len(answer.split()) >= 15 and "\n-" not in answer),
        "account": float(facts["account"] in answer),
        "customer": float(facts["customer"] in answer),
        "topic": float(facts["topic"] in answer),
    }


def _repeat(facts: Facts, answer: str) -> Scores:
    return {"same_text": float(answer == facts["text"])}


_CHECKS: Mapping[Task, Callable[[Facts, str], Scores]] = {
    "summary": _summary, "json": _json, "reply": _reply, "sql": _sql, "python": _python,
    "status": _status, "label": _label, "extraction": _extraction, "notes": _notes,
    "repeat": _repeat,
}  # fmt: skip
