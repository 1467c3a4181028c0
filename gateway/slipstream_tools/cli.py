"""The command `slipstream`.

The options of a sub-command and its work are in two modules. The first needs no extra, so that `--help` works in every
installation; the second is imported when the sub-command runs.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

from slipstream_core import logs
from slipstream_core.arguments import StrictParser
from slipstream_core.errors import CommandError, ManifestError, SlipstreamError
from slipstream_core.installation import how_to_install


class Options(Protocol):
    """The interface of the module with a sub-command's options."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...


class Command(Protocol):
    """The interface of the module with a sub-command's work."""

    def run(self, args: argparse.Namespace) -> int: ...


class _Entry(NamedTuple):
    """Modules by their name, those of this package by a name that begins with a dot. `extra` has the packages that the
    work requires. `defaults` are values of options, or of what the module reads beside them."""

    options: str
    module: str
    extra: str
    summary: str
    defaults: Mapping[str, Any] = {}


_OPERATOR = "slipstream_operator.command"
_COMMANDS = {
    "up": _Entry(
        ".up.options", ".up.command", "embedded", "start Triton with a model pair and the gateway, on this machine"
    ),
    "gateway": _Entry(".gateway.options", ".gateway.command", "gateway", "serve the OpenAI-compatible endpoint"),
    "extproc": _Entry(
        ".gateway.options",
        ".gateway.command",
        "gateway",
        "decide inside Envoy, as its external processor",
        {"ext_proc": "127.0.0.1:9002"},
    ),
    "route": _Entry(".route_options", ".route", "gateway", "explain the decision for a request without running it"),
    "kill": _Entry(
        ".kill.options",
        ".kill.command",
        "kubernetes",
        "stop speculation at once, in a cluster or at gateways, and wait for confirmation",
        {"on": True},
    ),
    "unkill": _Entry(".kill.options", ".kill.command", "kubernetes", "undo a kill", {"on": False}),
    "keys": _Entry(".keys.command", ".keys.command", "gateway", "create, list, revoke and rotate API keys"),
    "operator": _Entry(_OPERATOR, _OPERATOR, "operator", "run the control plane of model pairs in a cluster"),
    "train": _Entry(".train.options", ".train.command", "train", "train the classifier on your own labelled requests"),
    "bench": _Entry(".bench.arguments", ".bench.command", "bench", "compare modes of decoding on your own requests"),
    "drafts": _Entry(
        ".drafts.options", ".drafts.command", "drafts", "list, export and delete captured answers, train drafts on them"
    ),
    "replay": _Entry(
        ".replay_options", ".replay", "bench", "decide the requests of a recorded bench by another policy"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a sub-command and returns its exit code: 0 success, 1 failure, 2 usage error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except CommandError as exc:
        return _fail(str(exc), exc.exit_code, tail=exc.tail)
    except ManifestError as exc:
        return _fail(str(exc), 2)
    except SlipstreamError as exc:
        return _fail(str(exc), 1)
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Python flushes again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else ""
    if name not in _COMMANDS:
        _overview().parse_args(arguments)
        _overview().print_help(sys.stderr)
        return 2
    args = _parser(name).parse_args(arguments[1:])
    code = _load(name).run(args)
    sys.stdout.flush()  # flush here, where a failure is handled
    return code


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of all sub-commands by name."""
    return {name: _parser(name) for name in _COMMANDS}


def _parser(name: str) -> argparse.ArgumentParser:
    entry = _COMMANDS[name]
    about = f"{entry.summary[:1].upper()}{entry.summary[1:]}."
    parser = StrictParser(prog=f"slipstream {name}", description=about)
    cast(Options, _module(entry.options)).add_arguments(parser)
    parser.set_defaults(**entry.defaults)
    return parser


def _overview() -> argparse.ArgumentParser:
    """The output of `slipstream --help`; it parses no sub-command."""
    lines = "\n".join(f"  {name:9}{entry.summary}" for name, entry in _COMMANDS.items())
    parser = StrictParser(
        prog="slipstream",
        usage="slipstream COMMAND [options]",
        description="Speculative decoding per request, only where it pays.",
        epilog=f"commands:\n{lines}\n\nSee 'slipstream COMMAND --help' for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="show the version and exit")
    parser.add_argument("command", nargs="?", choices=list(_COMMANDS), help=argparse.SUPPRESS, metavar="COMMAND")
    return parser


class _PrintVersion(argparse.Action):
    """Looks up the version only on request."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"slipstream {version('slipstream-serving')}")
        parser.exit()


def _module(name: str) -> ModuleType:
    return importlib.import_module(name, "slipstream_tools")


def _load(name: str) -> Command:
    """The module with a sub-command's work. For a missing package the message has the command that installs it."""
    try:
        return cast(Command, _module(_COMMANDS[name].module))
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("slipstream_"):
            raise
        hint = how_to_install(_COMMANDS[name].extra)
        raise CommandError(f"'slipstream {name}' requires the package '{exc.name}'; {hint}") from exc


def _fail(message: str, code: int, *, tail: str = "") -> int:
    """Prints every line of `message` as an error; `tail` is indented below."""
    lines = [f"slipstream: error: {line}" for line in message.splitlines()]
    lines += [f"    {line}" for line in tail.splitlines()]
    logs.tell("\n".join(lines), logging.ERROR)
    return code


if __name__ == "__main__":
    sys.exit(main())
