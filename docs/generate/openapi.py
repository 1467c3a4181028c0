"""The HTTP interface as OpenAPI 3.1, from the types that the gateway reads bodies into and from its map of errors.

Bounds are the parser's own; `tests/docs/test_openapi.py` holds the two against each other at every bound.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.manifest.model_pair import MAX_DRAFT_TOKENS
from slipstream_core.types import Mode
from slipstream_gateway.api import parse, parse_responses
from slipstream_gateway.api.body import WireBody, WireResponsesBody
from slipstream_gateway.api.features import MAX_CHOICES, MAX_TOKENS, NO_EFFECT
from slipstream_gateway.api.parse import COMPLETION_MAX_TOKENS

from docs.generate import answers

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_ANSWERS = (
    answers.ChatCompletion,
    answers.TextCompletion,
    answers.Response,
    answers.Model,
    answers.ModelList,
    answers.ErrorBody,
    answers.Live,
    answers.Ready,
    answers.Explained,
)
# Of the body's fields, those that belong to one endpoint alone.
_CHAT_ONLY, _COMPLETION_ONLY = ("messages",), ("prompt",)
_TOKEN_COUNT = {"minimum": 1, "maximum": MAX_TOKENS}
_BOUNDS: Mapping[str, Schema] = {
    "model": {"minLength": 1},
    "messages": {"minItems": 1},
    "max_tokens": _TOKEN_COUNT,
    "max_completion_tokens": _TOKEN_COUNT,
    "max_output_tokens": _TOKEN_COUNT,
    "temperature": {"minimum": 0},
    "top_p": {"minimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "maximum": MAX_TOKENS},
    "seed": {"minimum": -(2**63), "maximum": 2**63 - 1},
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
    "best_of": {"minimum": 1, "maximum": MAX_CHOICES},
}
_BOUNDED = "Maximum: that of the servers, or of `requestBounds`."
_DESCRIPTIONS: Mapping[str, str] = {
    "model": "The model's name in the manifest: see `/v1/models`.",
    "messages": "The conversation. Parts other than text need an upstream that supports them.",
    "prompt": f"Text, or token ids, or a list of them. {_BOUNDED}",
    "input": "Text, or items: messages, tool calls and their results, and other items of the server. Optional if the "
    "request has `prompt`, `previous_response_id` or `conversation`.",
    "instructions": "The system message.",
    "max_output_tokens": "The maximum of tokens of the answer. Default: the answer ends at the model's context.",
    "text": "`format` sets the format of the answer: `text`, `json_object` or `json_schema`.",
    "include": "Additional parts of the answer, such as `message.output_text.logprobs`.",
    "background": "Must be false: the gateway stores no responses.",
    "stream": "Server-sent events instead of one JSON document.",
    "stream_options": "Only with `stream`.",
    "max_tokens": "The old name of `max_completion_tokens`. Give one of them, or equal values.",
    "max_completion_tokens": f"The maximum of tokens of the answer. Default: {COMPLETION_MAX_TOKENS} for a text "
    "completion, as in OpenAI's reference; a chat ends at the model's context.",
    "temperature": f"0 is greedy. {_BOUNDED}",
    "top_k": "0 and -1 turn it off.",
    "seed": "The same seed gives the same answer from servers with the same `system_fingerprint`.",
    "stop": f"Texts that end the answer. The answer does not contain them. {_BOUNDED}",
    "n": f"The number of choices of each prompt. {_BOUNDED}",
    "best_of": "The number of answers to generate per prompt, for upstreams that return the best `n` of them.",
}
_OTHERS = (
    "Every other parameter of OpenAI's API, or of the upstream's, is forwarded to upstreams that can honour it. If no "
    "server of the pair can, the answer is 400 with the parameter's name. Accepted everywhere, because they do not "
    "change the answer: " + ", ".join(f"`{name}`" for name in sorted(NO_EFFECT)) + "."
)
_STREAM = (
    "A stream that breaks after its first byte, and cannot be resumed, ends with an `error` event and without `[DONE]`."
)
_RESPONSE_STREAM = (
    "For models behind servers that have this endpoint, such as vLLM's. A stream that breaks after its first byte ends "
    "with an event of the type `error` and without `response.completed`. The gateway stores no responses: `background` "
    "and `/v1/responses/{id}` are refused. `previous_response_id` and `conversation` are refused if the model has more "
    "than one server."
)
_ERRORS: Mapping[int, str] = {
    400: "The request is malformed, out of bounds, or needs a feature that no server of the pair has. The message has "
    "the field and the value. An upstream's own 4xx is forwarded unchanged.",
    401: "There is no key, or it is invalid. Only if keys are on.",
    403: "The key lacks the scope, or the permission for a restricted parameter. Without keys on the loopback: `Host` "
    "or `Origin` is foreign.",
    404: "There is no such model or path.",
    405: "The path does not support the method.",
    408: "The request did not arrive in time, or its answer was not read.",
    413: "The body is larger than the limit.",
    414: "The URL is longer than the limit.",
    415: "`content-type` is missing or not JSON, or the body is compressed.",
    429: "The gateway is overloaded, or a limit of the key is reached. Retry after `retry-after` seconds.",
    431: "The header fields are too many or too long.",
    500: "The gateway has a fault.",
    502: "The upstream failed.",
    503: "No server is up. Retry after `retry-after` seconds.",
    504: "A deadline passed.",
}
_GENERATION_ERRORS = (400, 401, 403, 404, 408, 413, 414, 415, 429, 431, 500, 502, 503, 504)


def _version() -> str:
    """Of the source tree: an installed distribution may be an older one."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])


def document() -> Schema:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Slipstream gateway",
            "version": _version(),
            "description": "OpenAI-compatible generation, with a decision per request whether speculative decoding "
            "pays. Every error is OpenAI's error object.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "tags": [
            {"name": "generation", "description": "Used by clients."},
            {
                "name": "operation",
                "description": "Used by operators and monitoring. With keys, some need the scope `admin`.",
            },
        ],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, or a token of the identity provider. Only if keys are on.",
                }
            },
        },
        "security": [{}, {"key": []}],
    }


def _paths() -> Schema:
    return {
        "/v1/chat/completions": {"post": _generation("createChatCompletion", "Answer a conversation", "Chat")},
        "/v1/completions": {"post": _generation("createCompletion", "Continue a text", "Text")},
        "/v1/responses": {
            "post": _generation("createResponse", "Answer, in the form of the Responses API", "Response")
        },
        "/v1/models": {
            "get": _reading("generation", "listModels", "The models of the manifest", _json("ModelList"), (401, 500))
        },
        "/v1/models/{model}": {
            "parameters": [_parameter("model", "path", "Its name; may contain slashes.", {"type": "string"})],
            "get": _reading("generation", "getModel", "One model", _json("Model"), (401, 404, 500)),
        },
        "/v1/route": {"post": _route()},
        "/v1/evidence": {
            "get": _reading("operation", "getEvidence", "Measured effects, by pair and class", _object(), (401, 403))
        },
        "/health/live": {"get": _reading("operation", "getLive", "The process runs", _json("Live"), ())},
        "/health/ready": {"get": _ready()},
        "/metrics": {"get": _reading("operation", "getMetrics", "Metrics", _exposition(), (401, 403))},
    }


def _generation(operation: str, summary: str, kind: str) -> Schema:
    completion = _json("Response" if kind == "Response" else f"{kind}Completion")
    content = completion | {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "tags": ["generation"],
        "operationId": operation,
        "summary": summary,
        "description": _RESPONSE_STREAM if kind == "Response" else _STREAM,
        "parameters": _request_headers(),
        "requestBody": {"required": True, "content": _json(f"{kind}Request")},
        "responses": {
            "200": {
                "description": "The answer; with `stream`, as server-sent events.",
                "headers": {
                    name: {"description": text, "schema": {"type": "string"}}
                    for name, text in answers.RESPONSE_HEADERS.items()
                },
                "content": content,
            },
            **_errors(_GENERATION_ERRORS),
        },
    }


def _route() -> Schema:
    body = {"anyOf": [{"$ref": _REF.format(name=f"{kind}Request")} for kind in ("Chat", "Text", "Response")]}
    return {
        "tags": ["operation"],
        "operationId": "explainRoute",
        "summary": "The decision for a request, without running it",
        "description": "A body with `messages` is a chat, with `input` a response, with `prompt` a completion.",
        "parameters": _request_headers(),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "The decision.", "content": _json("Explained")},
            **_errors((400, 401, 403, 404, 408, 413, 414, 415, 429, 431, 500, 503)),
        },
    }


def _reading(tag: str, operation: str, summary: str, content: Schema, errors: tuple[int, ...]) -> Schema:
    ok = {"description": summary + ".", "content": content}
    return {"tags": [tag], "operationId": operation, "summary": summary, "responses": {"200": ok, **_errors(errors)}}


def _ready() -> Schema:
    ready = _reading("operation", "getReady", "Requests can be served", _json("Ready"), ())
    ready["responses"]["503"] = {
        "description": "Requests cannot be served now; `models` has the reasons.",
        "content": _json("Ready"),
    }
    return ready


def _request_headers() -> list[Schema]:
    schemas: Mapping[str, Schema] = {
        "x-slipstream-mode": {"enum": [str(mode) for mode in Mode]},
        "x-slipstream-draft-length": {"type": "integer", "minimum": 1, "maximum": MAX_DRAFT_TOKENS},
        "x-slipstream-learn": {"enum": ["on", "off"]},
        "x-slipstream-capture": {"enum": ["allow", "deny"]},
        "x-request-timeout": {"type": "number", "exclusiveMinimum": 0},
    }
    return [
        _parameter(name, "header", text, schemas.get(name, {"type": "string"}))
        for name, text in answers.REQUEST_HEADERS.items()
    ]


def _parameter(name: str, where: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "description": description, "schema": schema}


def _errors(statuses: tuple[int, ...]) -> Schema:
    return {str(status): {"description": _ERRORS[status], "content": _json("ErrorBody")} for status in statuses}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


def _object() -> Schema:
    return {"application/json": {"schema": {"type": "object"}}}


def _exposition() -> Schema:
    text = {"schema": {"type": "string"}}
    return {"text/plain": text, "application/openmetrics-text": text}


def _schemas() -> Schema:
    _, wire = msgspec.json.schema_components([WireBody, WireResponsesBody], ref_template=_REF)
    _, made = msgspec.json.schema_components(_ANSWERS, ref_template=_REF)
    body, response = wire.pop("WireBody"), wire.pop("WireResponsesBody")
    schemas = {
        "ChatRequest": _request(body, without=_COMPLETION_ONLY, required=["model", *_CHAT_ONLY]),
        "TextRequest": _request(body, without=_CHAT_ONLY, required=["model", *_COMPLETION_ONLY]),
        "ResponseRequest": _response_request(response),
        **wire,
        **made,
    }
    schemas["WireMessage"]["properties"]["role"] = {"enum": list(parse.ROLES)}
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].split())
    return {name: schemas[name] for name in sorted(schemas)}


def _response_request(body: Schema) -> Schema:
    """Without `input` there must be something that stands for it."""
    schema = _request(body, without=(), required=["model"])
    schema["properties"]["background"] = {"enum": [False, None], "description": _DESCRIPTIONS["background"]}
    return schema | {"anyOf": [{"required": [name]} for name in ("input", *parse_responses.STORED_INPUT)]}


def _request(body: Schema, *, without: tuple[str, ...], required: list[str]) -> Schema:
    properties = {
        name: _property(name, schema, null=name not in required)
        for name, schema in body["properties"].items()
        if name not in without
    }
    return {
        "type": "object",
        "description": _OTHERS,
        "properties": properties,
        "required": required,
        "additionalProperties": True,
    }


def _property(name: str, schema: Schema, *, null: bool) -> Schema:
    """A field's schema with the parser's bounds; a required one cannot be null."""
    kinds = [dict(kind) for kind in schema.get("anyOf", [schema])]
    for kind in kinds:
        kind.pop("default", None)
        if kind.get("type") in ("integer", "number", "string", "array"):
            kind.update(_BOUNDS.get(name, {}))
        if name == "stop":
            kind.update(_stop_bounds(kind))
        if name == "input" and kind.get("type") == "array":
            kind["minItems"] = 1
        if name == "prompt" and kind.get("type") == "array":
            kind.update(_prompt_bounds())
    if not null:
        kinds = [kind for kind in kinds if kind.get("type") != "null"]
    written = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return written | ({"description": _DESCRIPTIONS[name]} if name in _DESCRIPTIONS else {})


def _stop_bounds(kind: Schema) -> Schema:
    if kind.get("type") == "array":
        return {"items": {"type": "string", "minLength": 1}}
    return {"minLength": 1} if kind.get("type") == "string" else {}


def _prompt_bounds() -> Schema:
    """Texts, token ids, or lists of them: not mixed, and only one of several has to be understood here."""
    ids: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}
    several = {"type": "array", "minItems": 1, "items": ids}
    return {"minItems": 1, "items": {}, "anyOf": [{"items": kind} for kind in ({"type": "string"}, ids, several)]}
