"""The commands that `slipstream up` prints: one that speculates, one that does not, one that explains a decision."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import NamedTuple

import msgspec
from slipstream_core.errors import CommandError

# The prompts belong to the embedded pair, whose package the gateway never imports, so a subprocess prints them.
_READ_PROMPTS = """
import json
from slipstream_engine.embedded import demo
print(json.dumps({"long": demo.CALL_SUMMARY, "short": demo.LABEL, "explained": demo.EXTRACTION}))
"""
_TIMEOUT_S = 30.0
_LONG_TOKENS = 256
_LABEL_TOKENS = 2  # one word and the end
_SHORT_TOKENS = 48

_TEXT = """\
The city council of Lyon met on Tuesday, 14 March 2026, to discuss the new tram line. Mayor Anne Keller said the line \
will cost 48 million euros and open in 2029. Two members of the council, Paul Richter and Sara Lind, voted against it \
because of the noise. The line will run from the main station to the university, with 11 stops."""

Messages = list[dict[str, str]]


class DemoPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations in OpenAI's form: with a long predictable answer, with one of at most `short_tokens`, and one to be
    explained."""

    long: Messages
    short: Messages
    explained: Messages
    short_tokens: int = _LABEL_TOKENS
    long_title: str = "A call summary, streamed: long and structured"
    short_title: str = "A label: one word, too short to gain"


class DemoCommand(NamedTuple):
    """A shell command, and its title."""

    title: str
    command: str


def read_prompts(*, timeout_s: float = _TIMEOUT_S) -> DemoPrompts:
    """The embedded pair's demo prompts.

    Raises:
        CommandError: the engine package is not installed completely, or does not respond within `timeout_s`.
    """
    command = [sys.executable, "-c", _READ_PROMPTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as exc:
        raise CommandError(f"reading the embedded pair's demo prompts took longer than {timeout_s:g} s") from exc
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CommandError(f"cannot read the embedded pair's demo prompts: {reason}")
    return msgspec.json.decode(done.stdout, type=DemoPrompts)


def general_prompts() -> DemoPrompts:
    """Prompts for a small general model, with answers that repeat words of the prompt and with others."""
    return DemoPrompts(
        long=_user("Summarise this text in two sentences.\n\n" + _TEXT),
        short=_user("What is the capital of France?"),
        explained=_user("List the people that this text names, one per line.\n\n" + _TEXT),
        short_tokens=_SHORT_TOKENS,
        long_title="A summary of a text, streamed: it repeats the text's words",
        short_title="A one-line answer: short",
    )


def _user(content: str) -> Messages:
    return [{"role": "user", "content": content}]


def demo_commands(prompts: DemoPrompts, *, url: str, model: str, with_key: bool = False) -> list[DemoCommand]:
    """Ready-to-paste commands for a gateway at `url`; `with_key`: they send the shell's `SLIPSTREAM_API_KEY`."""
    key = ' -H "authorization: Bearer $SLIPSTREAM_API_KEY"' if with_key else ""
    streamed = {
        "model": model,
        "messages": prompts.long,
        "max_tokens": _LONG_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    whole = {
        "model": model,
        "messages": prompts.short,
        "max_tokens": prompts.short_tokens,
        "temperature": 0,
    }
    explain = {"model": model, "messages": prompts.explained, "temperature": 0}
    return [
        DemoCommand(prompts.long_title, _curl(f"-iN{key}", f"{url}/v1/chat/completions", streamed)),
        DemoCommand(prompts.short_title, _curl(f"-i{key}", f"{url}/v1/chat/completions", whole)),
        DemoCommand("A decision explained, without generating", _curl(f"-s{key}", f"{url}/v1/route", explain)),
    ]


def _curl(flags: str, url: str, body: object) -> str:
    return f"curl {flags} {url} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
