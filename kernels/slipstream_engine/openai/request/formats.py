"""The grammar that a body prescribes for its answer: `response_format`, or vLLM's `structured_outputs`."""

from __future__ import annotations

from slipstream_engine.openai.errors import bad_field
from slipstream_engine.openai.request.body import Body, ResponseFormat, StructuredOutputs
from slipstream_engine.text.grammar import json_grammar, lark_grammar, regex_grammar, text_choice

_ANY_OBJECT = {"type": "object"}


def grammar_of(body: Body) -> str | None:
    """None for free text. Raises `Refusal`, or `RequestError` for a schema that is no JSON."""
    format_ = None if body.response_format is None else _of_format(body.response_format)
    structured = None if body.structured_outputs is None else _of_structured(body.structured_outputs)
    if format_ is not None and structured is not None:
        raise bad_field("structured_outputs", "and response_format exclude each other.")
    return format_ or structured


def _of_format(given: ResponseFormat) -> str | None:
    if given.type == "text":
        return None
    if given.type == "json_object":
        return json_grammar(_ANY_OBJECT, "response_format")
    if given.type != "json_schema":
        kinds = "text, json_object, json_schema"
        raise bad_field("response_format.type", f"is {given.type!r:.40}; one of {kinds} is required.")
    if given.json_schema is None or given.json_schema.schema is None:
        raise bad_field("response_format.json_schema", "has no schema.")
    return json_grammar(given.json_schema.schema, "response_format.json_schema.schema")


def _of_structured(given: StructuredOutputs) -> str:
    field = "structured_outputs"
    spaces = not given.disable_any_whitespace
    found = []
    if given.json is not None:
        found.append(json_grammar(given.json, f"{field}.json", spaces=spaces))
    if given.json_object:
        found.append(json_grammar(_ANY_OBJECT, f"{field}.json_object", spaces=spaces))
    if given.regex is not None:
        found.append(regex_grammar(given.regex))
    if given.choice is not None:
        if not given.choice:
            raise bad_field(f"{field}.choice", "is empty.")
        found.append(text_choice(given.choice))
    if given.grammar is not None:
        found.append(lark_grammar(given.grammar))
    if len(found) != 1:
        raise bad_field(field, "needs exactly one of json, json_object, regex, choice and grammar.")
    return found[0]
