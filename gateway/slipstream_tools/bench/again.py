"""The command that runs a bench again, as its report shows it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.manifest import EMBEDDED_MANIFEST

from slipstream_tools.bench.arguments import add_arguments
from slipstream_tools.bench.arrivals import PER_SECOND
from slipstream_tools.bench.options import BenchOptions

_OWN = {"suite", "manifest", "url", "modes", "arrivals", "expect", "out", "write_policy", "pair"}
"""Fields that are written in a form of their own, or not at all."""
_ALWAYS = {"requests", "rounds", "seed"}


def command_again(options: BenchOptions) -> str:
    """A command line with the same settings, for the folder in which the run was started. It writes into a folder of
    its own: in the same one, nothing would be left to run."""
    return shlex.join(["slipstream", "bench", *_words(options)])


def _words(options: BenchOptions) -> Iterator[str]:
    yield from _system(options)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    names = {action.dest: action.option_strings[-1] for action in parser._actions}
    for field in msgspec.structs.fields(BenchOptions):
        value = getattr(options, field.name)
        if field.name in _ALWAYS or (field.name not in _OWN and value != field.default):
            yield from (names[field.name], _text(value))
    yield from ("--modes", ",".join(mode.name for mode in options.modes))
    if options.arrivals:
        yield from ("--arrivals", ",".join(one.name.removesuffix(PER_SECOND) for one in options.arrivals))
    for expectation in options.expect:
        yield from ("--expect", expectation)
    yield from ("--out", f"{options.out}-again")


def _system(options: BenchOptions) -> Iterator[str]:
    """The suite and the servers, without user name and password."""
    if options.suite is not None:
        yield from ("--suite", options.suite)
        if options.manifest == EMBEDDED_MANIFEST.parent / f"{options.manifest.stem.removesuffix('-vllm')}-vllm.yaml":
            yield from ("--engine", "vllm")
    if options.url is not None:
        yield from ("--url", options.shown_url)
    elif options.manifest.parent != EMBEDDED_MANIFEST.parent:
        yield from ("-f", str(options.manifest))


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, Path | str | int) else f"{value:g}"
