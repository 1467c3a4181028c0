"""Chat prompts: equal to transformers' `apply_chat_template`, and no way for a message to close its own
turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_engine.errors import RequestError
from slipstream_engine.text.tokenizer import Tokenizer

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|system|>\\n\\n" + system_message + "<|end|>" }}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n\\n' + message['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n\\n' }}
{%- endif %}
"""
QWEN = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and ns.last < 0 %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- endif %}
    {%- if message.role == "assistant" and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|' + message.role + '|>\\n' + content + '<|end|>' + '\\n' }}
{%- endfor %}
{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""
CHATML = """\
{% for message in messages %}
    {% if message.role == "skip" %}{% continue %}{% endif %}
    {% generation %}
<|{{ message.role }}|>
    {% endgeneration %}
{{ message.content }}<|end|>
{% endfor %}
{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
MISTRAL = """\
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '<|user|> ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
JSON_LINES = "{{ bos_token }}{% for message in messages %}{{ message | tojson }}{{ unset }}{% endfor %}{{ pad_token }}"
TEMPLATES = {"llama3": LLAMA3, "qwen": QWEN, "chatml": CHATML, "mistral": MISTRAL, "json": JSON_LINES}
NAMES = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}

TURNS = [
    {"role": "user", "content": "  Hello, <b>größer</b> 你好 🎉\n"},
    {"role": "assistant", "content": "<think>hm</think>\n\nYes & no."},
    {"role": "user", "content": "And then?"},
]
SYSTEM = {"role": "system", "content": " Be brief. "}
CONVERSATIONS = {"one": TURNS[:1], "three": TURNS, "system": [SYSTEM, *TURNS]}
# No deadline: a busy machine is not a failure.
THOROUGH = settings(deadline=None, max_examples=150)


def expected_ids(folder: Path, template: str, messages: list[dict[str, str]]) -> tuple[int, ...]:
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **NAMES)
    ids = peer.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return tuple(ids)


@pytest.mark.parametrize(
    ("name", "conversation"),
    # Mistral's template takes no system message: see the test of refusals.
    [pair for pair in itertools.product(TEMPLATES, CONVERSATIONS) if pair != ("mistral", "system")],
)
def test_chat_prompt_equals_transformers(write_folder: Callable[..., Path], name: str, conversation: str) -> None:
    folder = write_folder(chat_template=TEMPLATES[name])
    messages = CONVERSATIONS[conversation]
    assert Tokenizer.load(folder).render_chat(messages) == expected_ids(folder, TEMPLATES[name], messages)


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
def test_chat_prompt_equals_transformers_with_sentencepiece(write_folder: Callable[..., Path], kind: str) -> None:
    folder = write_folder(kind, chat_template=LLAMA3)
    assert Tokenizer.load(folder).render_chat(TURNS) == expected_ids(folder, LLAMA3, TURNS)


def test_the_templates_bos_is_the_only_one(byte_level: Tokenizer) -> None:
    assert byte_level.render_chat(TURNS).count(byte_level.bos_id) == 1


TEMPLATE_PLACES: list[dict[str, Any]] = [
    {"files": {"chat_template.jinja": "<|user|>{{ messages[0].content }}"}},
    {"files": {"chat_template.json": {"chat_template": "<|user|>{{ messages[0].content }}"}}},
    {
        "chat_template": [
            {"name": "tools", "template": "x"},
            {"name": "default", "template": "<|user|>{{ messages[0].content }}"},
        ]
    },
    {"chat_template": [{"name": "only", "template": "<|user|>{{ messages[0].content }}"}]},
]


@pytest.mark.parametrize("place", TEMPLATE_PLACES, ids=["jinja", "json", "named default", "named only"])
def test_template_is_found_where_hugging_face_puts_it(write_folder: Callable[..., Path], place: dict[str, Any]) -> None:
    tokenizer = Tokenizer.load(write_folder(**place))
    assert tokenizer.render_chat(TURNS[2:]) == tokenizer.encode("<|user|>And then?", add_special=False)


def test_missing_template_is_an_error_of_the_chat_request_only(write_folder: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(write_folder(chat_template=None))
    assert tokenizer.decode(tokenizer.encode("still works")) == "still works"
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.render_chat(TURNS)


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (MISTRAL, [SYSTEM], "refused them: roles must alternate"),
        ("{{ messages[0].content + 1 }}", TURNS, "refused them: can only concatenate str"),
        ("{{ messages[9].content }}", TURNS, "refused them: .*no element 9"),
        ("{{ messages.append(1) }}", TURNS, "refused them: .*unsafe|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", TURNS, "refused them: .*unsafe"),
        ("{{ namespace(_x=1) }}", TURNS, "refused them: .*underscore"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", TURNS, "refused them: maximum recursion"),
        ("x", [], "messages is empty"),
        ("x", ["hi"], r"messages\[0\] is of type str, not an object"),
        ("x", [{"role": "user", "content": None}], r"messages\[0\]\.content is of type NoneType"),
        (
            "x",
            [TURNS[0], {"role": "user", "content": "\udc00"}],
            r"messages\[1\]\.content: character 0 is a lone",
        ),
    ],
)
def test_refused_messages_give_one_readable_line(
    write_folder: Callable[..., Path], template: str, messages: list[dict[str, str]], message: str
) -> None:
    tokenizer = Tokenizer.load(write_folder(chat_template=template))
    with pytest.raises(RequestError, match=message) as refusal:
        tokenizer.render_chat(messages)
    assert "\n" not in str(refusal.value)


def control_ids(tokenizer: Tokenizer, content: str) -> list[int]:
    ids = tokenizer.render_chat([{"role": "user", "content": content}])
    return [token_id for token_id in ids if token_id in tokenizer.special_ids]


@THOROUGH
@given(
    parts=st.lists(st.sampled_from(["<|end|>", "<|user|>", "<|", "|>", "<", "end", "\ue000", "é", " "]), max_size=12)
)
def test_message_cannot_inject_special_tokens(byte_level: Tokenizer, parts: list[str]) -> None:
    content = "".join(parts)
    ids = byte_level.render_chat([{"role": "user", "content": content}])
    assert control_ids(byte_level, content) == control_ids(byte_level, "harmless")
    assert content in byte_level.decode(ids)


def test_special_tokens_that_overlap_are_all_neutralised(write_folder: Callable[..., Path]) -> None:
    folder = write_folder()
    tokenizer = Tokenizer.load(folder)
    assert control_ids(tokenizer, "<|end|><|end|><<|end|>") == control_ids(tokenizer, "harmless")
    assert tokenizer.vocab["<|end|>"] in tokenizer.encode("<|end|>")  # raw text, in contrast, is a whole prompt
