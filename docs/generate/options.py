"""The command line, as its own parsers have it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from slipstream_tools import cli

from docs.generate.markdown import page, table


def options() -> str:
    parts, seen = [], dict[tuple[str, ...], str]()
    for name, parser in cli.parsers().items():
        found = tuple(_parts(parser))
        first = seen.setdefault(found, name)
        if first != name:
            found = (f"The options are those of [`slipstream {first}`](#slipstream-{first}).",)
        parts += [f"## `slipstream {name}`", parser.description or "", *found]
    return page(
        "Command line and settings",
        "One command, `slipstream`, with sub-commands. What a gateway does with requests is the manifest's business; "
        "these options say how it runs. Environment variables are named where they count.",
        *parts,
    )


def _parts(parser: argparse.ArgumentParser) -> Iterable[str]:
    """Its options by group; sub-commands of its own follow, one heading below."""
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if _is_shown(action)]
        if rows:
            yield table(("Option", "What it does"), rows)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield f"### `{below.prog}`" if below.prog.endswith(name) else f"### `{name}`"
                yield from _parts(below)


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
