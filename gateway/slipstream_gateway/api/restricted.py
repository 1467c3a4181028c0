"""Finds the restricted parameters that a request uses; `access` compares them with the permissions of the key.

Of two equal names the last one counts, as in all known servers. Paths have no steps below a part: a
body may be nested deeply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from slipstream_core.errors import shorten
from slipstream_core.parameter_names import KNOWN_PARAMETERS
from slipstream_core.restricted_parameters import Restricted, RestrictedUse
from slipstream_core.types import Endpoint

from slipstream_gateway.api.body import WireMessage

Uses = dict[Restricted | None, str]
"""The first place of each restricted parameter."""


class _Holder(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"null")


_IN_PARTS = {
    str(one): one
    for one in (
        Restricted.PROMPT_EMBEDS,
        Restricted.IMAGE_EMBEDS,
        Restricted.AUDIO_EMBEDS,
        Restricted.VIDEO_EMBEDS,
        Restricted.UUID,
        Restricted.ITEM_REFERENCE,
        Restricted.FILE_ID,
    )
} | {"file_ids": Restricted.FILE_ID}
_IN_BODY = {
    str(one): one for one in Restricted if str(one) in KNOWN_PARAMETERS and one is not Restricted.STORED_PROMPT
} | {"web_search_options": Restricted.SERVER_TOOLS}
_IN_RESPONSES = _IN_BODY | {str(Restricted.STORED_PROMPT): Restricted.STORED_PROMPT}
_TEMPLATE, _TEMPLATE_KWARGS = str(Restricted.CHAT_TEMPLATE), "chat_template_kwargs"
_WITH_VALUES = {"tools", _TEMPLATE_KWARGS}
_OF_COMPLETIONS = (_IN_BODY, KNOWN_PARAMETERS - _IN_BODY.keys() - _WITH_VALUES)
_OF_RESPONSES = (_IN_RESPONSES, KNOWN_PARAMETERS - _IN_RESPONSES.keys() - _WITH_VALUES)
_RUN_BY_CLIENTS = frozenset(
    {"function", "custom", "namespace", "local_shell", "apply_patch", "computer", "computer_use_preview"}
)
# Items of a response's input that declare tools, and the names under which tools and their schemas stand: a property
# of a schema is no reference.
_WITH_TOOLS = ("additional_tools", "tool_search_output")
_OF_TOOLS = frozenset({"tools", "parameters", "input_schema", "output_schema", "schema"})
_STATES = (Restricted.PREVIOUS_RESPONSE_ID, Restricted.CONVERSATION, Restricted.STORED_PROMPT)
_NULL = frozenset({b"null"})
_NEUTRAL = {str(Restricted.PRIORITY): frozenset({b"null", b"0"})}
_decode_holders = msgspec.json.Decoder(list[_Holder]).decode
_SEPARATORS = str.maketrans("", "", "-_ ")


def _bare(name: str) -> str:
    """`name` as a server reads it that ignores case or separators, such as Go's `encoding/json`."""
    return name.casefold().translate(_SEPARATORS)


_BARE_NAMES = frozenset(map(_bare, KNOWN_PARAMETERS))


def restricted_uses(
    fields: Mapping[str, msgspec.Raw], endpoint: Endpoint, parts: Sequence[tuple[str, msgspec.Raw]]
) -> tuple[RestrictedUse, ...]:
    """The restricted parameters of the body `fields`. `parts` are lists inside it whose values may be media or refer to
    stored state, each with its place."""
    named, free = _OF_RESPONSES if endpoint is Endpoint.RESPONSES else _OF_COMPLETIONS
    if not parts and fields.keys() <= free:
        return ()  # the fast path for nearly every request
    found: Uses = {
        named[name]: name
        for name in fields.keys() & named.keys()
        if bytes(fields[name]) not in _NEUTRAL.get(name, _NULL)
    }
    for name in fields.keys() - KNOWN_PARAMETERS:
        found.setdefault(None if _bare(name) in _BARE_NAMES else Restricted.UNKNOWN, shorten(name))
    if _TEMPLATE_KWARGS in fields:
        kwargs = _decoded(fields[_TEMPLATE_KWARGS], _TEMPLATE_KWARGS, found)
        if isinstance(kwargs, dict) and kwargs.get(_TEMPLATE) is not None:
            found.setdefault(Restricted.CHAT_TEMPLATE, f"{_TEMPLATE_KWARGS}.{_TEMPLATE}")
    if "tools" in fields:
        _find_server_tools(_decoded(fields["tools"], "tools", found), found)
    for where, raw in parts:
        for index, part in enumerate(_items(_decoded(raw, where, found))):
            _find_in_part(f"{where}[{index}]", part, found)
    return tuple([RestrictedUse(*use) for use in found.items()])


def state_ids(
    uses: Sequence[RestrictedUse], fields: Mapping[str, msgspec.Raw], parts: Sequence[tuple[str, msgspec.Raw]]
) -> tuple[str, ...]:
    """The ids of stored state that a body with the restricted parameters `uses` names, for the arguments of
    `restricted_uses`."""
    used = {use.parameter for use in uses}
    whole = [_decoded(fields[str(one)], "", {}) for one in _STATES if one in used]
    named = [value.get("id") if isinstance(value, dict) else value for value in whole]
    # The variables of a stored prompt have names of the client's choice.
    variables = [list(each.values()) for value in _dicts(whole) for each in _dicts([value.get("variables")])]
    if used & {Restricted.ITEM_REFERENCE, Restricted.FILE_ID, Restricted.STORED_PROMPT}:
        for value in _objects([whole, variables, *(_decoded(raw, "", {}) for _, raw in parts)]):
            if Restricted.ITEM_REFERENCE in (value.get("type"), *value):
                named.append(value.get("id"))
            files = [value.get("file_id"), *_items(value.get("file_ids"))]
            named += [one for one in files if one is not None]
    return tuple(map(str, named))


def content_parts(messages: Sequence[WireMessage], raw: msgspec.Raw) -> list[tuple[str, msgspec.Raw]]:
    """The contents of chat messages that are lists of parts. `raw` is the JSON of `messages`."""
    if not any(isinstance(message.content, list) for message in messages):
        return []
    return [
        (f"messages[{index}].content", holder.content)
        for index, (message, holder) in enumerate(zip(messages, _decode_holders(raw), strict=True))
        if isinstance(message.content, list)
    ]


def _find_in_part(where: str, part: Any, found: Uses) -> None:
    """Adds the restricted names and kinds at any depth of `part`."""
    for value in _objects(part):
        kind = value.get("type")
        if isinstance(kind, str) and kind in _IN_PARTS:
            found.setdefault(_IN_PARTS[kind], f"{where}.type")
        for name in value.keys() & _IN_PARTS.keys():
            if value[name] is not None:
                found.setdefault(_IN_PARTS[name], f"{where}.{name}")
        if kind in _WITH_TOOLS:
            _find_server_tools(value.get("tools"), found)


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    """The objects at any depth of `part`, except those of tools."""
    values = [part]
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, dict):
            yield value
            values += [inner for name, inner in value.items() if name not in _OF_TOOLS]


def _find_server_tools(tools: Any, found: Uses) -> None:
    """Adds the tools that the server runs. A tool without a type is a function; a namespace has tools of its own."""
    values = list(_items(tools))
    while values:
        tool = values.pop()
        if not isinstance(tool, dict):
            continue
        if not _is_run_by_client(tool):
            found.setdefault(Restricted.SERVER_TOOLS, "tools")
        values += _items(tool.get("tools"))


def _is_run_by_client(tool: Mapping[str, Any]) -> bool:
    kind = tool.get("type") or "function"
    if kind == "shell":
        environment = tool.get("environment")
        return isinstance(environment, dict) and environment.get("type") == "local"
    if kind == "tool_search":
        return tool.get("execution") == "client"
    return isinstance(kind, str) and kind in _RUN_BY_CLIENTS


def _dicts(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _decoded(raw: msgspec.Raw, where: str, found: Uses) -> Any:
    """The JSON value `raw`. One that only other decoders accept (lone surrogates, deep nesting) is for no key."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found.setdefault(None, where)
        return None
