"""Quality checks: what passes, what does not, and which references cannot be used."""

from __future__ import annotations

import pytest
from slipstream_tools.bench.checks import CheckError, make_checks

SCHEMA = {"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}}
FIELDS = {"Order ID": "4711", "total": 12.5, "paid": True}


@pytest.mark.parametrize(
    ("check", "reference", "answer", "score"),
    [
        ("label", "Refund", " refund.\n", 1.0),
        ("label", ["refund", "return"], "Return", 1.0),
        ("label", "refund", "refund please", 0.0),
        ("contains", ["4711", "in transit"], "Order 4711 is IN\nTRANSIT.", 1.0),
        ("contains", ["4711", "delivered"], "Order 4711 is in transit.", 0.5),
        ("json-schema", SCHEMA, '{"order": 4711}', 1.0),
        ("json-schema", SCHEMA, '```json\n{"order": 4711}\n```', 1.0),
        ("json-schema", SCHEMA, '{"order": "4711"}', 0.0),
        ("json-schema", SCHEMA, "The order is 4711.", 0.0),
        ("json-schema", False, "{}", 0.0),
        ("json-schema", SCHEMA, "[" * 100_000, 0.0),
        ("json-schema", {"$ref": "#/$defs/order", "$defs": {"order": SCHEMA}}, '{"order": 1}', 1.0),
        ("fields", FIELDS, '{"order_id": 4711, "total": 12.50, "paid": true, "more": 1}', 1.0),
        ("fields", FIELDS, "Order ID: 4711\n- Total: 12.5\nPaid: no", 2 / 3),
        ("fields", '{"a": {"b": [1, "X"]}}', '{"a": {"B": [1.0, "x"]}}', 1.0),
        ("fields", {"paid": True}, '{"paid": 1}', 0.0),
        ("fields", {"paid": True}, "Paid: TRUE", 1.0),
        ("fields", FIELDS, "[]", 0.0),
        ("fields", FIELDS, f'{{"total": 1{"0" * 400}}}', 0.0),
        ("fields", FIELDS, f'{{"total": {"[" * 900}1{"]" * 900}}}', 0.0),
        ("json-schema", {"$ref": "#"}, "{}", 0.0),
    ],
)
def test_answers_are_scored(check: str, reference: object, answer: str, score: float) -> None:
    [(name, made)] = make_checks(check, reference).items()
    assert name == check
    assert made(answer) == pytest.approx(score)


def test_several_checks_share_a_reference_or_have_their_own() -> None:
    assert list(make_checks(["label", "contains"], "refund")) == ["label", "contains"]
    own = make_checks({"json-schema": SCHEMA, "fields": {"order": 1}}, "unused")
    assert [check('{"order": 1}') for check in own.values()] == [1.0, 1.0]
    assert make_checks(None, "reference alone") == {}


@pytest.mark.parametrize(
    ("check", "reference", "message"),
    [
        ("bleu", "x", "'check' must be of label, json-schema, fields, contains, got \"bleu\""),
        ("label", {"a": 1}, "check 'label' needs a text or a list of texts as its reference"),
        ("label", None, "got null"),
        ("contains", [], "check 'contains' needs a text or a list of texts"),
        ("contains", ["a", 1], "check 'contains' needs a text or a list of texts"),
        ("fields", "free text", "check 'fields' needs a JSON object with fields as its reference, got \"free text\""),
        ("fields", {}, "check 'fields' needs a JSON object with fields"),
        ("fields", [1], "check 'fields' needs a JSON object with fields"),
        ("json-schema", "free text", "check 'json-schema' needs a schema as its reference"),
        ("json-schema", {"$ref": "http://127.0.0.1:9/schema"}, 'refers to "http://127.0.0.1:9/schema", which is not'),
        ("json-schema", {"anyOf": [{"$ref": "#/$defs/x"}]}, 'refers to "#/$defs/x", which is not in it'),
        ("json-schema", {"$schema": 7}, "check 'json-schema': "),
        ("json-schema", {"$schema": ["x"]}, "check 'json-schema': "),
        ("json-schema", {"$id": 7, "$ref": "#/a"}, "check 'json-schema': "),
        ("fields", {"a": 10**400}, "check 'fields': its reference cannot be used: OverflowError"),
        ("json-schema", {"type": "objekt"}, "check 'json-schema': the reference is no valid schema: 'objekt'"),
    ],
)
def test_a_reference_that_does_not_fit_is_named(check: object, reference: object, message: str) -> None:
    with pytest.raises(CheckError) as caught:
        make_checks(check, reference)
    assert message in str(caught.value)
