"""The command `slipstream`. A sub-command's module is imported only when it runs, so that --help is fast."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from slipstream_core.errors import CommandError, ManifestError, SlipstreamError


class Command(Protocol):
    """The interface of a sub-command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class _Entry(NamedTuple):
    module: str
    summary: str


_COMMANDS = {
    "up": _Entry("slipstream_tools.up", "start Triton with a model pair and the gateway, on this machine"),
    "gateway": _Entry("slipstream_tools.gateway.command", "serve the OpenAI-compatible endpoint"),
    "extproc": _Entry("slipstream_tools.gateway.extproc", "decide inside Envoy, as its external processor"),
    "route": _Entry("slipstream_tools.route", "explain the decision for a request without running it"),
    "kill": _Entry("slipstream_tools.kill", "stop speculation in a cluster at once, and wait for confirmation"),
    "unkill": _Entry("slipstream_tools.kill.unkill", "undo a kill"),
    "keys": _Entry("slipstream_tools.keys", "create, list, revoke and rotate API keys"),
    "operator": _Entry("slipstream_operator.command", "run the control plane of model pairs in a cluster"),
    "train": _Entry("slipstream_tools.train.command", "train the classifier on your own labelled requests"),
    "bench": _Entry("slipstream_tools.bench.command", "compare modes of decoding on your own requests"),
    "drafts": _Entry("slipstream_tools.drafts", "list, export and delete captured answers, train drafts on them"),
    "replay": _Entry("slipstream_tools.replay", "decide the requests of a recorded bench by another policy"),
}
_EXTRAS = {
    "up": "embedded",
    "gateway": "gateway",
    "kill": "kubernetes",
    "unkill": "kubernetes",
    "keys": "gateway",
    "operator": "operator",
    "train": "train",
    "bench": "bench",
    "drafts": "drafts",
    "replay": "bench",
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
    command, parser = _parser(name)
    code = command.run(parser.parse_args(arguments[1:]))
    sys.stdout.flush()  # flush here, where a failure is handled
    return code


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of all sub-commands by name. Requires the packages of all of them."""
    return {name: _parser(name)[1] for name in _COMMANDS}


def _parser(name: str) -> tuple[Command, argparse.ArgumentParser]:
    entry = _COMMANDS[name]
    command = _load(name, entry.module)
    about = f"{entry.summary[:1].upper()}{entry.summary[1:]}."
    parser = argparse.ArgumentParser(prog=f"slipstream {name}", description=about)
    command.add_arguments(parser)
    return command, parser


def _overview() -> argparse.ArgumentParser:
    """The output of `slipstream --help`; it parses no sub-command."""
    lines = "\n".join(f"  {name:9}{entry.summary}" for name, entry in _COMMANDS.items())
    parser = argparse.ArgumentParser(
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


def _load(name: str, module: str) -> Command:
    """A sub-command's module. For a missing package the message has the extra that installs it."""
    try:
        return cast(Command, importlib.import_module(module))
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("slipstream_"):
            raise
        extra = _EXTRAS.get(name, "gateway")
        hint = f"install 'slipstream-serving[{extra}]'"
        raise CommandError(f"'slipstream {name}' requires the package '{exc.name}': {hint}.") from exc


def _fail(message: str, code: int, *, tail: str = "") -> int:
    """Prints every line of `message` as an error; `tail` is indented below."""
    lines = [f"slipstream: error: {line}" for line in message.splitlines()]
    lines += [f"    {line}" for line in tail.splitlines()]
    print("\n".join(lines), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
