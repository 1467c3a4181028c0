"""What every plot stands in: axes, gridlines, a caption, a description, and the table behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slipstream_tools.bench.report.markup import Markup, join, number, tag
from slipstream_tools.bench.report.scales import Scale

Format = Callable[[float], str]
_WIDE = 700
"""Drawings above this width, in pixels, scroll on a telephone rather than shrink."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The plot's area inside its drawing, in pixels."""

    width: float
    height: float
    left: float = 56
    right: float = 16
    top: float = 12
    bottom: float = 44

    @property
    def x_range(self) -> tuple[float, float]:
        return self.left, self.width - self.right

    @property
    def y_range(self) -> tuple[float, float]:
        """From the bottom up."""
        return self.height - self.bottom, self.top


def x_axis(frame: Frame, scale: Scale, form: Format, label: str) -> Markup:
    """Vertical gridlines with their labels below, and the axis's name."""
    bottom, top = frame.y_range
    parts = []
    for tick in scale.ticks:
        x = scale(tick)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=top, class_="grid"))
        parts.append(tag("text", form(tick), x=x, y=bottom + 16, text_anchor="middle", class_="tick"))
    middle = (frame.x_range[0] + frame.x_range[1]) / 2
    parts.append(tag("text", label, x=middle, y=bottom + 34, text_anchor="middle", class_="axis"))
    return tag("g", *parts, aria_hidden="true")


def y_axis(frame: Frame, scale: Scale, form: Format, label: str) -> Markup:
    """Horizontal gridlines with their labels on the left, and the axis's name along it."""
    left, right = frame.x_range
    parts = []
    for tick in scale.ticks:
        y = scale(tick)
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", form(tick), x=left - 8, y=y + 4, text_anchor="end", class_="tick"))
    middle = (frame.y_range[0] + frame.y_range[1]) / 2
    turned = f"rotate(-90 14 {number(middle)})"
    parts.append(tag("text", label, x=14.0, y=middle, text_anchor="middle", class_="axis", transform=turned))
    return tag("g", *parts, aria_hidden="true")


def path(points: Iterable[tuple[float, float]], **attributes: str | None) -> Markup:
    """A line through `points`, in pixels; nothing where there are none."""
    steps = [f"{number(x)},{number(y)}" for x, y in points]
    if not steps:
        return Markup("")
    return tag("path", d="M" + "L".join(steps), fill="none", **attributes)


def plot(*parts: str, frame: Frame, key: str, title: str, description: str) -> Markup:
    """The drawing: one stop for the Tab key, in which the arrow keys go from mark to mark."""
    style = "plot wide" if frame.width > _WIDE else "plot"
    return tag(
        "svg",
        tag("title", title, id=f"{key}-t"), tag("desc", description, id=f"{key}-d"), *parts,
        viewBox=f"0 0 {number(frame.width)} {number(frame.height)}", class_=style, tabindex=0, role="application",
        aria_roledescription="interactive chart", aria_labelledby=f"{key}-t", aria_describedby=f"{key}-d",
    )  # fmt: skip


def figure(drawing: Markup, *, caption: str, behind: Markup | None = None) -> Markup:
    """A drawing with its caption and, folded, the table of its figures."""
    return tag("figure", tag("figcaption", caption), drawing, behind)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, text_columns: int = 1, fold: bool = True
) -> Markup:
    """A table whose first `text_columns` columns are text, the others figures; folded away where `fold`."""
    header = [tag("th", cell, scope="col", class_=None if i < text_columns else "n") for i, cell in enumerate(head)]
    body = []
    for row in rows:
        first = tag("th", row[0], scope="row")
        rest = [tag("td", cell, class_=None if i + 1 < text_columns else "n") for i, cell in enumerate(row[1:])]
        body.append(tag("tr", first, *rest))
    made = tag(
        "table",
        tag("caption", caption, class_="quiet" if fold else None),
        tag("thead", tag("tr", *header)), tag("tbody", *body),
    )  # fmt: skip
    scroll = tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return tag("details", tag("summary", "The figures"), scroll) if fold else scroll


def note(*text: str) -> Markup:
    return tag("p", join(*text), class_="note")
