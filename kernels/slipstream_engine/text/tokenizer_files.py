"""Reads the tokenizer settings of a Hugging Face folder, except tokenizer.json itself.

Files: tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json, chat_template.jinja,
chat_template.json. All files are optional, but an existing file must be readable. CheckpointError names the file and
the field.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream_engine.errors import CheckpointError
from slipstream_engine.text.chat_template import ChatTemplate, TemplateSyntaxError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TEXT_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
)
"""The files of a checkpoint that decide about texts."""
_TOKEN_FIELDS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` are the named special tokens' texts (`bos_token`, …). `eos_ids` are the ids in the model files, each
    with the name of its file. `chat_template` is None if the folder has none."""

    tokens: Mapping[str, str]
    eos_ids: Mapping[int, str]
    chat_template: ChatTemplate | None


def read_settings(folder: Path, checkpoint: Path) -> TokenizerSettings:
    """Read the settings from the tokenizer's `folder`, and the EOS ids from the model's folder `checkpoint`."""
    config_file = folder / "tokenizer_config.json"
    config = read_json(config_file)
    named = _tokens(folder / "special_tokens_map.json") | _tokens(config_file)
    return TokenizerSettings(
        tokens=named, eos_ids=_eos_ids(checkpoint), chat_template=_chat_template(folder, config, named)
    )


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file does not exist."""
    text = read_text(file)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except ValueError as exc:
        raise CheckpointError(f"{file}: not valid JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}, not a JSON object")
    return content


def read_text(file: Path) -> str | None:
    """A file's text; None if the file does not exist."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise CheckpointError(f"{file}: cannot be read: {exc}") from exc


def _tokens(file: Path) -> dict[str, str]:
    """Named special tokens: `"</s>"` or `{"content": "</s>", …}`; null means none."""
    content = read_json(file)
    found = {}
    for field in _TOKEN_FIELDS:
        value = content.get(field)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise CheckpointError(f"{file}: {field} is {value!r}, not a token's text")
        found[field] = text
    return found


def _eos_ids(folder: Path) -> dict[int, str]:
    """The EOS ids: from generation_config.json if it has any, else from config.json."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
            raise CheckpointError(f"{folder / name}: eos_token_id is {value!r}, not an id or a list of ids")
        return dict.fromkeys(ids, name)
    return {}


def _chat_template(folder: Path, config: Mapping[str, Any], tokens: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template: a separate file takes precedence over the entry in tokenizer_config.json."""
    jinja_file, json_file = folder / "chat_template.jinja", folder / "chat_template.json"
    candidates = (
        (jinja_file, read_text(jinja_file)),
        (json_file, read_json(json_file).get("chat_template")),
        (folder / "tokenizer_config.json", config.get("chat_template")),
    )
    for file, value in candidates:
        if value is not None:
            try:
                return ChatTemplate(_pick(file, value), tokens)
            except TemplateSyntaxError as exc:
                raise CheckpointError(f"{file}: the chat template is not valid Jinja: {exc}") from exc
    return None


def _pick(file: Path, value: object) -> str:
    """The template itself, or `default` (or the only one) from a list of named templates."""
    if isinstance(value, str):
        return value
    try:
        named = {entry["name"]: entry["template"] for entry in msgspec.convert(value, list[dict[str, str]])}
    except (msgspec.ValidationError, KeyError) as exc:
        raise CheckpointError(f"{file}: chat_template is neither text nor a list of name and template") from exc
    if "default" not in named and len(named) != 1:
        raise CheckpointError(f"{file}: chat_template has none called 'default' among {sorted(named)}")
    return named["default"] if "default" in named else next(iter(named.values()))
