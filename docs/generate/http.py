"""The HTTP interface as a page: the OpenAPI document's words, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generate.answers import REQUEST_HEADERS, RESPONSE_HEADERS
from docs.generate.markdown import page, table
from docs.generate.openapi import document


def http() -> str:
    described = document()
    return page(
        "HTTP interface",
        "The whole of it for programs: [openapi.json](openapi.json), OpenAPI 3.1.",
        table(("Path", "What it does", "Answers"), _paths(described)),
        "## Headers of a request",
        table(("Header", "What it asks for"), [(f"`{name}`", text) for name, text in REQUEST_HEADERS.items()]),
        "## Headers of an answer",
        table(("Header", "What it says"), [(f"`{name}`", text) for name, text in RESPONSE_HEADERS.items()]),
        "## Fields of a generation request",
        described["components"]["schemas"]["ChatRequest"]["description"],
        table(("Field", "Bounds", "What it says"), _fields(described["components"]["schemas"])),
        "## Errors",
        'Always `{"error": {"message", "type", "param", "code"}}`; in a stream, as its last event.',
        table(("Status", "When"), _errors(described)),
    )


def _paths(described: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for path, operations in described["paths"].items():
        for method in ("get", "post"):
            if found := operations.get(method):
                yield f"`{method.upper()} {path}`", found["summary"], ", ".join(found["responses"])


def _fields(schemas: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    fields = {
        name: field
        for kind in ("ChatRequest", "TextRequest", "ResponseRequest")
        for name, field in schemas[kind]["properties"].items()
    }
    for name, field in fields.items():
        kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
        low = next((kind["minimum"] for kind in kinds if "minimum" in kind), None)
        high = next((kind["maximum"] for kind in kinds if "maximum" in kind), None)
        yield f"`{name}`", "" if low is None else f"{low} to {high}", field.get("description", "")


def _errors(described: dict[str, Any]) -> list[tuple[str, str]]:
    answers = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    return [(status, answer["description"]) for status, answer in answers.items() if status != "200"]
