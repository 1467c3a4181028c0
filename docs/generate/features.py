"""What the official `openai` client can do in front of each engine, from the cases of its tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from docs.generate.markdown import page, table
from tests.support.openai_client.chat import CHAT
from tests.support.openai_client.engines import ROUTES, expected
from tests.support.openai_client.features import Feature
from tests.support.openai_client.others import ERRORS, OTHERS

_INTRODUCTION = """\
Features of the official `openai` client (Python). Tests try the first two columns on the real engines, and the
refusals of the others. SGLang and TensorRT-LLM did not run: their limits were read in their code."""

_MEANINGS = """\
- **yes**: both arms serve it. For vLLM: with the result of a vLLM server without speculation, but for ids, times and
  the gateway's part of the usage. Sampled requests had a seed; log-probabilities may differ in the third digit.
- **plainly**: served without speculation. **refused**: 400 with the parameter's name, before a server gets the request.
- **Own pair**: the embedded engine in Triton. **vLLM**: one pool with [the plugin](../howto/vllm.md). **vLLM, two
  pools**: servers without it. [vLLM inside Triton](../howto/vllm-triton.md) has a page of its own."""

_STATE = """\
`POST /v1/responses` is decided, limited, measured and cancelled like a chat. The gateway keeps no responses:

- `GET`, `DELETE` and `POST …/cancel` of `/v1/responses/{id}` are 404. Stream long answers instead of `background`.
- `previous_response_id` and `conversation` are passed on where the model has one server, which may keep responses
  (vLLM: `VLLM_ENABLE_RESPONSES_API_STORE=1`). With several servers, a `plain` pool included, they are refused: send the
  conversation in `input`. For one address of several servers, such as a Service, add both to `engine.unsupported`.
- The usage has the drafts in `output_tokens_details`, and beside it `slipstream`.
- A streamed response is not resumed on another server, and responses are not compared for parity. A stream whose server
  fails ends with an event `error`, for which the `openai` client raises `APIError`.
- Slipstream's own engine has no `/v1/responses`: 400 with the code `unsupported_endpoint`."""


def features() -> str:
    return page("What works on which engine", _INTRODUCTION, _MEANINGS, *_tables(), "## State of responses", _STATE)


def _tables() -> Iterator[str]:
    head = ("Feature", "Own pair", "vLLM", "vLLM, two pools", "SGLang", "TensorRT-LLM", "Note")
    for area, rows in groupby([*CHAT, *OTHERS], key=lambda feature: feature.area):
        yield f"## {area}"
        if area == ERRORS:
            yield table(("Case", "vLLM", "Note"), [(row.name, row.vllm.value, row.note) for row in rows])
        else:
            yield table(head, _merged(rows))


def _merged(features: Iterable[Feature]) -> list[tuple[str, ...]]:
    """One row for all features with the same cells."""
    names: dict[tuple[str, ...], list[str]] = {}
    for feature in features:
        names.setdefault(_cells(feature), []).append(feature.name)
    return [("; ".join(found), *cells) for cells, found in names.items()]


def _cells(feature: Feature) -> tuple[str, ...]:
    own, *others = (expected(feature, route)[0].value for route in ROUTES.values())
    return own, feature.vllm.value, *others, feature.note
