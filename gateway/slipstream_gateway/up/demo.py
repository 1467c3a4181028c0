"""The commands that `slipstream up` prints: one that speculates, one that does not, one that says why."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import NamedTuple

import msgspec

from slipstream_gateway.errors import CommandError

# The prompts belong to the embedded pair, whose package the gateway never imports: it is asked in a process.
_READ_PROMPTS = """
import json
from slipstream_engine.embedded import demo
names = ("CALL_SUMMARY", "ONE_LINE_STATUS", "EXTRACTION")
print(json.dumps({name.lower(): getattr(demo, name) for name in names}))
"""
_TIMEOUT_S = 30.0
_SUMMARY_TOKENS = 256
_STATUS_TOKENS = 48
# A small share of requests is held back or explored by a hash of this id: the demo shows what the rest gets.
_REQUEST_ID = "demo"

Messages = list[dict[str, str]]


class DemoPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations in OpenAI's form."""

    call_summary: Messages
    one_line_status: Messages
    extraction: Messages


class DemoCommand(NamedTuple):
    """A command for a shell, and what it shows."""

    title: str
    command: str


def read_prompts(*, timeout_s: float = _TIMEOUT_S) -> DemoPrompts:
    """The embedded pair's demo prompts.

    Raises:
        CommandError: the engine package is not installed whole, or does not answer within `timeout_s`.
    """
    command = [sys.executable, "-c", _READ_PROMPTS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as exc:
        raise CommandError(f"the embedded pair's demo prompts took longer than {timeout_s:g} s to read") from exc
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CommandError(f"the embedded pair's demo prompts cannot be read: {reason}")
    return msgspec.json.decode(done.stdout, type=DemoPrompts)


def demo_commands(prompts: DemoPrompts, *, url: str, model: str, with_key: bool = False) -> list[DemoCommand]:
    """Ready-to-paste commands for a gateway at `url`; `with_key`: the shell's `SLIPSTREAM_API_KEY` is sent along."""
    key = ' -H "authorization: Bearer $SLIPSTREAM_API_KEY"' if with_key else ""
    summary = {
        "model": model,
        "messages": prompts.call_summary,
        "max_tokens": _SUMMARY_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    status = {
        "model": model,
        "messages": prompts.one_line_status,
        "max_tokens": _STATUS_TOKENS,
        "temperature": 0,
    }
    explain = {"model": model, "messages": prompts.extraction, "temperature": 0}
    return [
        DemoCommand(
            "A call summary, streamed: long and structured",
            _curl(f"-iN{key} -H 'x-request-id: {_REQUEST_ID}'", f"{url}/v1/chat/completions", summary),
        ),
        DemoCommand(
            "A one-line status: short",
            _curl(f"-i{key} -H 'x-request-id: {_REQUEST_ID}'", f"{url}/v1/chat/completions", status),
        ),
        DemoCommand("A decision explained, nothing is generated", _curl(f"-s{key}", f"{url}/v1/route", explain)),
    ]


def _curl(flags: str, url: str, body: object) -> str:
    return f"curl {flags} {url} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
