"""Renders a checkpoint's chat template as Hugging Face does: the same environment, filters and variables.

A template is untrusted code from a checkpoint, so it runs in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from slipstream_engine.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser

# Exceptions that a template's expressions can raise for given messages: `content + 1`, a missing key, infinite
# recursion.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class TemplateSyntaxError(ValueError):
    """The template is not valid Jinja."""


class ChatTemplate:
    """One compiled template. `tokens` are the special tokens' texts by name (`bos_token`, `eos_token`, …).

    Raises TemplateSyntaxError with one line."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as exc:
            raise TemplateSyntaxError(f"line {exc.lineno}: {_one_line(exc)}") from exc
        self._tokens = dict(tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text up to the start of the assistant's answer. Raises RequestError with the template's error."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except _TEMPLATE_FAILURES as exc:
            raise RequestError(f"messages: the chat template refused them: {_one_line(exc)}") from exc


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's part for training. Here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares the attribute as a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _SafeNamespace(Namespace):
    """`namespace(...)` without underscore names, which give access to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805, RUF100 - `namespace(self=...)` must work too
        self, *positional = args
        names = dict(*positional, **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} starts with an underscore")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_dict, namespace=_SafeNamespace
    )
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # local time, as in Hugging Face


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict(...)` as a function, so that a template cannot access the class's attributes."""
    return dict(*args, **kwargs)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
