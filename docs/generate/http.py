"""The HTTP interface as a page: the OpenAPI document's words, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_core.errors import RequestCode
from slipstream_core.restricted_parameters import Restricted

from docs.generate.answers import REQUEST_HEADERS, RESPONSE_HEADERS
from docs.generate.markdown import listing, page
from docs.generate.openapi import document

_USAGE = """\
Answers of Triton, and of vLLM with the plugin, have OpenAI's `accepted_prediction_tokens` and
`rejected_prediction_tokens` in `usage.completion_tokens_details`, and `usage.slipstream`:

- `seed`, `draft_length`: those of the answer; `seed` is null if the server chose it
- `target_steps`: passes of the target after the prompt's
- `rejected_at`: passes that first rejected a draft token at each position
- `engine_seconds`: the engine's time that the answer took ([cost](../rollback.md#cost))
- `draft`: name of the draft, where the engine has several
- `resumed`: a cause for each continuation on another server

Unknown counts are null. vLLM counts one sequence only: an answer with `n` above 1 has no counts, and the gateway
learns no acceptance from it."""

_SEEDS = """\
A request without `seed`, or with `"seed": -1`, gets a random one, and `usage.slipstream.seed` returns it. With `n`
above 1, choice `i` (from 0) is sampled with `seed + i`, as a signed 64-bit number: a request for one choice with that
seed gets the same text.

`system_fingerprint` identifies all that determines an answer besides the request: the target's weights, tokenizer,
number format and device, and the sampling rule. **Two requests with equal bodies, equal seeds and equal fingerprints
get the same tokens**, greedy or sampled, whatever the arm, the draft length, the load, a kill switch or a resumption.
In bfloat16 and float16, [a few tokens per 10,000](../decisions/seed-equality.md) differ by rounding.

The fingerprint is null if the server does not promise this, or while the gateway has not read the server's facts yet.
A vLLM server writes its own `system_fingerprint`, which the gateway forwards; `usage.slipstream.seed` is then the
seed that the server got, the client's or the gateway's, or null: [seeds of vLLM](../vllm-plugin.md#seeds)."""

_CODES_INTRODUCTION = """\
Errors about one field of the request have the field in `param`, such as `messages[0].role`, and one of OpenAI's codes
in `code`. Bodies that are not JSON have neither. A name that is no parameter of OpenAI's or vLLM's is forwarded to
OpenAI-compatible servers (with keys on, [if the key may send it](#restricted-parameters)); Slipstream's engine refuses
it, and the message suggests a similar name."""
_CODES: Mapping[RequestCode, str] = {
    RequestCode.TYPE: "The value has the wrong JSON type. `3.0` counts as an integer.",
    RequestCode.VALUE: "The value has the right type and is not allowed.",
    RequestCode.CONTEXT_LENGTH: "Prompt and answer do not fit the model's context.",
    RequestCode.UNKNOWN: "No known server has a parameter of this name.",
    RequestCode.UNSUPPORTED: "No server of the model has the parameter.",
    RequestCode.UNSUPPORTED_VALUE: "No server of the model supports this value of the parameter.",
}


_RESTRICTED_INTRODUCTION = """\
With keys on, a key needs a [permission](../access.md#restricted-parameters) for each of these parameters, because they
act on other callers or on the server. Otherwise the answer is 403 with the parameter in `param`, before any server is
asked. Without keys everybody may send them. All other parameters of OpenAI's API and of vLLM 0.32 affect the caller's
own answer."""
_RESTRICTED: Mapping[Restricted, str] = {
    Restricted.PRIORITY: "runs before the requests of others, or preempts them; 0 needs no permission",
    Restricted.REQUEST_ID: "takes the id of another's request, log line or stored response",
    Restricted.SESSION_ID: "joins the session of another in the events of the prefix cache",
    Restricted.KV_TRANSFER_PARAMS: "reads and frees blocks of the cache on a named server",
    Restricted.EC_TRANSFER_PARAMS: "the same for the cache of encoders",
    Restricted.VLLM_XARGS: "reaches vLLM's connectors, schedulers and logits processors",
    Restricted.CHAT_TEMPLATE: "runs a Jinja program in the server; also as a name in `chat_template_kwargs`",
    Restricted.MEDIA_IO_KWARGS: "chooses how many frames of a video the server decodes, and by which program",
    Restricted.MM_PROCESSOR_KWARGS: "sets the size of images and videos in the server's memory",
    Restricted.PROMPT_EMBEDS: "loads a serialized tensor in the server; also as a part of a message",
    Restricted.IMAGE_EMBEDS: "the same, a part of a message",
    Restricted.AUDIO_EMBEDS: "the same, a part of a message",
    Restricted.VIDEO_EMBEDS: "the same, a part of a message",
    Restricted.UUID: "names an image, audio or video in the server's cache, which all callers share",
    Restricted.PREVIOUS_RESPONSE_ID: "reads a stored response",
    Restricted.CONVERSATION: "reads and extends a stored conversation",
    Restricted.STORED_PROMPT: "reads a stored prompt (`/v1/responses` only)",
    Restricted.ITEM_REFERENCE: "reads an item of a stored response",
    Restricted.FILE_ID: "reads a stored file",
    Restricted.SERVER_TOOLS: "`tools` that the server runs (all but functions and those of the client), and "
    "`web_search_options`: the server connects to other hosts, runs code, or searches stored files",
    Restricted.UNKNOWN: "a name that is a parameter neither of OpenAI's API nor of vLLM's, such as one of SGLang's",
}


def http() -> str:
    described = document()
    return page(
        "HTTP interface",
        "[openapi.json](openapi.json) describes the same interface for programs (OpenAPI 3.1).",
        listing(_paths(described)),
        "## Request headers",
        "The policy must set `allowClientMode` for `x-slipstream-mode`, `x-slipstream-draft-length` and "
        "`x-slipstream-learn`; without it they are ignored. A malformed value gets 400 in either case.",
        listing((f"`{name}`", text) for name, text in REQUEST_HEADERS.items()),
        "## Response headers",
        listing(_response_headers()),
        "## Usage",
        _USAGE,
        "## Seeds",
        _SEEDS,
        "## Fields of a generation request",
        described["components"]["schemas"]["ChatRequest"]["description"],
        listing(_fields(described["components"]["schemas"])),
        "## Restricted parameters",
        _RESTRICTED_INTRODUCTION,
        listing((f"`{one}`", _RESTRICTED[one]) for one in Restricted),
        "## Errors",
        'Always `{"error": {"message", "type", "param", "code"}}`; in a stream, as its last event.',
        listing(_errors(described)),
        _CODES_INTRODUCTION,
        listing((f"`{code}`", text) for code, text in _CODES.items()),
        f"Others are named for their cause: {', '.join(f'`{code}`' for code in RequestCode if code not in _CODES)}.",
    )


def _paths(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for path, operations in described["paths"].items():
        for method in ("get", "post"):
            if found := operations.get(method):
                yield f"`{method.upper()} {path}`", found["summary"]


def _response_headers() -> Iterator[tuple[str, str]]:
    """One row for the six headers of limits."""
    for name, text in RESPONSE_HEADERS.items():
        if name == "x-ratelimit-limit-requests":
            limits = "`x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests`; the same with `-tokens`"
            yield limits, "The key's limit per minute, its rest, and the time until all of it is available again."
        elif not name.startswith("x-ratelimit-"):
            yield f"`{name}`", text


def _fields(schemas: dict[str, Any]) -> Iterator[tuple[str, str]]:
    fields = {
        name: field
        for kind in ("ChatRequest", "TextRequest", "ResponseRequest")
        for name, field in schemas[kind]["properties"].items()
    }
    for name, field in fields.items():
        kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
        low = next((kind["minimum"] for kind in kinds if "minimum" in kind), None)
        high = next((kind["maximum"] for kind in kinds if "maximum" in kind), None)
        bounds = "" if low is None else f" (at least {low})" if high is None else f" ({low} to {high})"
        yield f"`{name}`{bounds}", field.get("description", "")


def _errors(described: dict[str, Any]) -> list[tuple[str, str]]:
    answers = described["paths"]["/v1/chat/completions"]["post"]["responses"]
    return [(status, answer["description"]) for status, answer in answers.items() if status != "200"]
