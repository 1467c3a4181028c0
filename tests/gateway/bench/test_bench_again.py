"""The report's command runs the same bench again, and a terminated bench leaves nothing behind."""

from __future__ import annotations

import argparse
import html
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from slipstream_tools.bench.again import command_again
from slipstream_tools.bench.arguments import add_arguments
from slipstream_tools.bench.options import BenchOptions, parse_options
from slipstream_tools.bench.results import read_results
from slipstream_tools.cli import main

from tests.support.polling import eventually

WORKLOAD = ["--requests", "embedded:9:3"]
START_S, STOP_S = 120.0, 60.0


def options_of(words: list[str]) -> BenchOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_options(parser.parse_args(words))


@pytest.mark.parametrize(
    "words",
    [
        WORKLOAD,
        [*WORKLOAD, "--draft-lengths", "1,3", "--concurrency", "1,8", "--warmup", "0", "--limit", "4", "--seed", "7"],
        [*WORKLOAD, "-f", "my pairs/pair.yaml", "--drafts", "ngram,draft", "--load-timeout", "300", "--rounds", "2"],
        [*WORKLOAD, "--url", "http://127.0.0.1:1", "--api-key-env", "KEY", "--model", "m", "--timeout", "2.5"],
        [*WORKLOAD, "--arrivals", "2,2x8", "--modes", "plain,routed", "--min-samples", "5", "--price", "3.6"],
        [*WORKLOAD, "--p95-reduction", "0.1", "--expect", "not-harmed", "--expect", "policy"],
        ["--suite", "mixed"],
        ["--suite", "mixed", "--engine", "vllm", "--concurrency", "2"],
        ["--suite", "mixed", "--dtype", "bfloat16"],
    ],
)
def test_the_command_has_the_settings_of_the_run(words: list[str]) -> None:
    options = options_of(words)
    program, command, *again = shlex.split(command_again(options))
    assert (program, command) == ("slipstream", "bench")
    assert options_of(again) == msgspec.structs.replace(options, out=Path(f"{options.out}-again"))


def test_the_command_shows_no_password() -> None:
    assert "secret" not in command_again(options_of([*WORKLOAD, "--url", "http://me:secret@127.0.0.1:1"]))


def test_the_command_of_the_report_runs_it_again(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path
) -> None:
    body = {"model": "acme", "messages": [{"role": "user", "content": "tokens=3"}], "temperature": 0}
    out = tmp_path / "out"
    words = ["--url", two_arms().url, "--requests", str(bench_file(body, body)), "--warmup", "0", "--out", str(out)]
    assert main(["bench", *words]) == 0
    [command] = re.findall(r'aria-label="The command"><code>(.*?)</code>', (out / "report.html").read_text())
    assert main(shlex.split(html.unescape(command))[1:]) == 0
    first, second = (read_results(tmp_path / name / "results.jsonl").rows for name in ("out", "out-again"))
    assert Counter((row.index, row.mode) for row in first) == Counter((row.index, row.mode) for row in second)


@pytest.mark.integration
@pytest.mark.parametrize("phase", ["servers start", "requests run"])
def test_a_terminated_bench_leaves_no_server_and_no_folder(tmp_path: Path, phase: str) -> None:
    temporary, out = tmp_path / "temporary", tmp_path / "out"
    temporary.mkdir()
    slipstream = Path(sys.executable).parent / "slipstream"
    process = subprocess.Popen(
        [str(slipstream), "bench", "--requests", "embedded:400", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    own = psutil.Process(process.pid)
    try:
        eventually(lambda: has_triton(own) and (phase == "servers start" or has_rows(out)), within_s=START_S)
        children = own.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=STOP_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143, output
    assert "the same command continues the run" in output
    assert "Traceback" not in output
    assert psutil.wait_procs(children, timeout=STOP_S)[1] == []
    assert list(temporary.iterdir()) == []


def has_triton(process: psutil.Process) -> bool:
    return any("tritonserver" in child.info["name"] for child in children_of(process))


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """With their names; those that end meanwhile are left out."""
    pids = {child.pid for child in process.children(recursive=True)}
    return [child for child in psutil.process_iter(["name"]) if child.pid in pids]


def has_rows(out: Path) -> bool:
    results = out / "results.jsonl"
    return results.exists() and len(results.read_bytes().splitlines()) > 3
