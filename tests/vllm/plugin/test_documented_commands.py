"""The commands of docs/howto/vllm.md for a server that has just started, on a server that has just started."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

from slipstream_tools.up.vllm_server import VllmServer

from tests.support.doc_blocks import Block, runs

TIMEOUT_S = 120.0


@runs("docs/howto/vllm.md", "URL=http")
def test_the_commands_print_what_the_page_says(blocks: list[Block], start_vllm: Callable[..., VllmServer]) -> None:
    block = blocks[0].text.splitlines()
    server = start_vllm()
    printed = _run(block, server).splitlines()
    [documented] = [json.loads(line) for line in block if line.startswith("{")]
    facts = json.loads(printed[0])
    assert re.fullmatch(r"[0-9a-f]{16}", facts["instance"])
    assert {**facts, "instance": documented["instance"]} == documented
    plain_text, plain_drafted, drafted_text, drafted, *counters = printed[1:]
    assert drafted_text == plain_text
    assert plain_drafted == '"num_draft_tokens":0'
    assert re.fullmatch(r'"num_draft_tokens":[1-9]\d*', drafted)
    assert len(counters) == 3
    assert all('{draft_length="3",request_class="smoke",source="drafter"}' in line for line in counters)
    server.stop()


def _run(block: list[str], server: VllmServer) -> str:
    """What the block's commands print, with this server's address and model."""
    commands = "\n".join(line.removeprefix("$ ") for line in block if line.startswith(("$ ", " ")))
    script = commands.replace("http://127.0.0.1:8000", server.url).replace("MODEL", server.launch.served_name)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
