"""The HTTP interface as a page: the OpenAPI document's words, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generate.answers import REQUEST_HEADERS, RESPONSE_HEADERS
from docs.generate.markdown import page, table
from docs.generate.openapi import document

_USAGE = """\
`usage.completion_tokens_details` has OpenAI's own `accepted_prediction_tokens` and `rejected_prediction_tokens`.
`usage.slipstream` has the seed, the draft length, the target's steps, and where drafts were rejected. Both are in
answers of Triton, and of vLLM with the plugin."""

_SEEDS = """\
A request without `seed`, or with `"seed": -1`, gets a random one, and `usage.slipstream.seed` returns it. With `n`
above 1, choice `i` (from 0) is sampled with `seed + i`, as a signed 64-bit number: a request for one choice with that
seed gets the same text.

`system_fingerprint` identifies all that determines an answer besides the request: the target's weights, tokenizer,
number format and device, and the sampling rule. **Two requests with equal bodies, equal seeds and equal fingerprints
get the same tokens**, greedy or sampled, whatever the arm, the draft length, the load, a kill switch or a resumption.
In bfloat16 and float16, rounding differs between batches, so that a few tokens per 10,000 differ: see [One seed, one
answer](../decisions/seed-equality.md).

The fingerprint is null if the server does not promise this, or while the gateway has not read the server's facts yet.
A vLLM server writes its own `system_fingerprint`, which the gateway forwards; `usage.slipstream.seed` is then the
client's seed, or null. [vLLM](../howto/vllm.md#seeds) has what a seed means there."""


def http() -> str:
    described = document()
    return page(
        "HTTP interface",
        "[openapi.json](openapi.json) describes the same interface for programs (OpenAPI 3.1).",
        table(("Path", "What it does", "Answers"), _paths(described)),
        "## Request headers",
        "The policy must set `allowClientMode` for `x-slipstream-mode`, `x-slipstream-draft-length` and "
        "`x-slipstream-learn`; without it they are ignored. A malformed value gets 400 in either case.",
        table(("Header", "Meaning"), [(f"`{name}`", text) for name, text in REQUEST_HEADERS.items()]),
        "## Response headers",
        table(("Header", "Meaning"), [(f"`{name}`", text) for name, text in RESPONSE_HEADERS.items()]),
        "## Usage",
        _USAGE,
        "## Seeds",
        _SEEDS,
        "## Fields of a generation request",
        described["components"]["schemas"]["ChatRequest"]["description"],
        table(("Field", "Bounds", "Meaning"), _fields(described["components"]["schemas"])),
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
