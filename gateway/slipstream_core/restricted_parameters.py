"""Parameters of a request that act on other callers, or on the server itself: a key needs a permission for each.

Read in vLLM 0.32's request classes (`vllm/entrypoints/openai/*/protocol.py`) and in OpenAI's reference. All other known
parameters affect the caller's own answer only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
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


WHY: Mapping[Restricted, str] = MappingProxyType(
    {
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
        Restricted.SERVER_TOOLS: "`tools` other than functions and those that the client runs, `web_search_options`: the "
        "server connects to other hosts, runs code, or searches stored files",
        Restricted.UNKNOWN: "a name that is a parameter neither of OpenAI's API nor of vLLM's, such as one of SGLang's",
    }
)
"""The effect of each parameter, for the documentation."""


class RestrictedUse(NamedTuple):
    """The first use of a restricted parameter in a request, and its place in the body. `parameter` None: a name that no
    key may send, because only some servers would read it."""

    parameter: Restricted | None
    path: str
