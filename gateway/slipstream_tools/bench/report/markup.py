"""HTML and SVG as values: whatever is not `Markup` is text and gets escaped, so data cannot become markup."""

from __future__ import annotations

from html import escape

Attribute = str | float | int | bool | None
VOID = frozenset({"meta", "input", "br", "col"})


class Markup(str):
    """Text that is markup already; made by `tag` and `join` only."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: Attribute) -> Markup:
    """`<name attribute="…">children</name>`.

    Underscores in attribute names stand for hyphens, a trailing one is dropped (`class_`); None and False leave an
    attribute out, True writes it bare. Children that are no `Markup` are escaped.
    """
    head = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}>{join(*children)}</{name}>")


def join(*children: str | None) -> Markup:
    """`children` one after the other, escaped where they are no `Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def _attribute(key: str, value: Attribute) -> str:
    if value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'


def number(value: float) -> str:
    """A coordinate: at most two decimals, no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
