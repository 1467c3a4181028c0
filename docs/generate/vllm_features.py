"""What the official `openai` client can do through the gateway in front of vLLM, from the cases of its test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from docs.generate.markdown import page, table
from tests.vllm.gateway.openai_client.chat_features import CHAT
from tests.vllm.gateway.openai_client.features import Feature
from tests.vllm.gateway.openai_client.other_features import OTHERS

_INTRODUCTION = """\
The gateway forwards requests to vLLM with the model's name changed. It adds the draft length and the request class
(`vllm_xargs`), the header `x-request-id`, and, for some of the answers that are compared for parity, the fields that
ask for token ids. The client gets vLLM's answer. This page lists what the official `openai` client (Python) was tried
with, one row per feature: directly against a vLLM server without speculation, and through the gateway in front of a
speculating one, on the plain and on the speculative arm. "yes" means the same result in every field, but for ids,
times and what the gateway adds to the usage. Sampled requests had a seed; log-probabilities may differ in the third
digit."""

_HEAD = ("Feature", "Same as directly, plain", "Same as directly, speculative", "Note")
_MANIFEST = """\
```yaml
engine:
  kind: vllm
  endpoints: ["http://vllm-0:8000"] # started with --scheduler-cls slipstream_vllm.Scheduler
  plain: {endpoints: ["http://vllm-plain:8000"]} # optional: takes min_p and logit_bias
```"""

_STATE = """\
`POST /v1/responses` is decided, limited, measured and cancelled like a chat. The gateway keeps no responses:

- `background: true` is refused, and `GET`, `DELETE` and `POST …/cancel` of `/v1/responses/{id}` are 404. Stream long
  answers instead.
- `previous_response_id` and `conversation` are passed on where the model has one server, which may keep responses
  (vLLM: `VLLM_ENABLE_RESPONSES_API_STORE=1`). With several servers, those of a `plain` pool included, they are refused
  with the parameter's name: the next request may reach a server that does not know the first one. Send the
  conversation in `input`.
- One address that stands for several servers, such as a Kubernetes Service, counts as one server. Add
  `previous_response_id` and `conversation` to `engine.unsupported` there.
- `store` is passed on. vLLM ignores it unless it was started to keep responses.
- The usage of a response has the drafts in `output_tokens_details` and beside it `slipstream`, as in a chat.
- A streamed response cannot be resumed on another server, and responses are not compared for parity. Where the server
  fails before the first event of the answer itself, another server is tried. After that event, the stream ends with an
  event of the type `error`, at which the `openai` client raises `APIError`.
- Pairs served by Slipstream's own engine have no `/v1/responses`: 400 with the code `unsupported_endpoint`."""


def vllm_features() -> str:
    return page(
        "What works in front of vLLM",
        _INTRODUCTION,
        _MANIFEST,
        *_tables(),
        "## State",
        _STATE,
    )


def _tables() -> Iterator[str]:
    for area, features in groupby([*CHAT, *OTHERS], key=lambda feature: feature.area):
        yield f"## {area}"
        yield table(
            ("Feature", "Same as directly, plain", "Same as directly, speculative", "Note"),
            [_row(feature) for feature in features],
        )


def _row(feature: Feature) -> tuple[str, str, str, str]:
    return feature.name, feature.plain.value, feature.speculative.value, feature.note
