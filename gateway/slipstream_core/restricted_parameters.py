"""Parameters of a request that act on other callers, or on the server itself: a key needs a permission for each.

Read in vLLM 0.32's request classes (`vllm/entrypoints/openai/*/protocol.py`) and in OpenAI's reference. All other known
parameters affect the caller's own answer only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Restricted(StrEnum):
    """The permissions, by the name of their parameter. Two have no such name: `SERVER_TOOLS` permits tools that the
    server runs, `UNKNOWN` permits names that the gateway does not know."""

    PRIORITY = "priority"
    REQUEST_ID = "request_id"
    SESSION_ID = "session_id"
    KV_TRANSFER_PARAMS = "kv_transfer_params"
    EC_TRANSFER_PARAMS = "ec_transfer_params"
    VLLM_XARGS = "vllm_xargs"
    CHAT_TEMPLATE = "chat_template"
    MEDIA_IO_KWARGS = "media_io_kwargs"
    MM_PROCESSOR_KWARGS = "mm_processor_kwargs"
    PROMPT_EMBEDS = "prompt_embeds"
    IMAGE_EMBEDS = "image_embeds"
    AUDIO_EMBEDS = "audio_embeds"
    VIDEO_EMBEDS = "video_embeds"
    UUID = "uuid"
    PREVIOUS_RESPONSE_ID = "previous_response_id"
    CONVERSATION = "conversation"
    STORED_PROMPT = "prompt"
    ITEM_REFERENCE = "item_reference"
    FILE_ID = "file_id"
    SERVER_TOOLS = "server_tools"
    UNKNOWN = "unknown_parameters"


class RestrictedUse(NamedTuple):
    """The first use of a restricted parameter in a request, and its place in the body. `parameter` None: a name that no
    key may send, because only some servers would read it."""

    parameter: Restricted | None
    path: str
