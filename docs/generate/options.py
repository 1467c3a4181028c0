"""The command line, as its own parsers have it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from slipstream_tools import cli

from docs.generate.markdown import listing, page

_DESCRIBED = {"gateway", "extproc"}
_PAGES = {
    "up": ("Another engine, another model", "../tutorial/engine-and-model.md"),
    "operator": ("The chart sets them", "../kubernetes.md"),
    "kill": ("Stop speculation at once", "../howto/kill.md"),
    "keys": ("Keys, limits and budgets", "../access.md"),
    "train": ("The classifier", "../classifier.md"),
    "bench": ("Measure your own traffic", "../bench.md"),
    "replay": ("Replay", "../bench.md#replay"),
    "drafts": ("Train a draft on your own traffic", "../howto/drafts.md"),
}


def options() -> str:
    parts, seen = [], dict[tuple[str, ...], str]()
    for name, parser in cli.parsers().items():
        found = tuple(_described(parser) if name in _DESCRIBED else _listed(parser))
        first = seen.setdefault(found, name)
        if first != name:
            found = (f"The options are those of [`slipstream {first}`](#slipstream-{first}).",)
        described = f" [{_PAGES[name][0]}]({_PAGES[name][1]})." if name in _PAGES else ""
        parts += [f"## `slipstream {name}`", (parser.description or "") + described, *found]
    return page(
        "Command line and settings",
        "Options of `slipstream` set how a process runs. The [manifest](resources.md) sets what a gateway does with "
        "requests. Those of the gateway are described here, all others listed by name: `--help`, and the linked page, "
        "describe them.",
        *parts,
    )


def _described(parser: argparse.ArgumentParser) -> Iterable[str]:
    yield listing(_rows(parser))


def _listed(parser: argparse.ArgumentParser) -> Iterable[str]:
    """The names of its options; those of its sub-commands one line each, without the options that precede them."""
    if names := ", ".join(option for option, _ in _rows(parser)):
        yield f"{names}."
    lines, above = [], set[str]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                names_below = [option for option, _ in _rows(below)]
                more = [option for option in names_below if option not in above]
                above.update(names_below)
                lines.append(f"- `{name}`: {', '.join(more) or 'those above'}")
    if lines:
        yield "A sub-command also has the options of earlier ones that apply to it:"
        yield "\n".join(lines)


def _rows(parser: argparse.ArgumentParser) -> Iterable[tuple[str, str]]:
    for group in parser._action_groups:
        yield from (_row(action) for action in group._group_actions if _is_shown(action))


def _is_shown(action: argparse.Action) -> bool:
    inner = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not inner and action.help != argparse.SUPPRESS


def _row(action: argparse.Action) -> tuple[str, str]:
    names = ", ".join(f"`{_spelled(option, action)}`" for option in action.option_strings)
    shown = action.metavar if isinstance(action.metavar, str) else action.dest
    return names or f"`{shown}`", _help(action)


def _spelled(option: str, action: argparse.Action) -> str:
    if action.nargs == 0:
        return option
    if action.choices is not None and action.metavar is None:
        return f"{option} {'|'.join(str(choice) for choice in action.choices)}"
    shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return f"{option} {shown}"


def _help(action: argparse.Action) -> str:
    """argparse's own formatting, with the defaults filled in."""
    text = action.help or ""
    if "%(" in text:
        values = {**vars(action), "prog": "slipstream"}
        values["choices"] = ", ".join(str(choice) for choice in action.choices or ())
        text = text % values
    return text.replace("%%", "%")
