"""`slipstream bench` against a real gateway in front of two servers: results, refusals, interruption, resumption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.installation import how_to_install
from slipstream_tools.bench.results import Row, read_results
from slipstream_tools.bench.summary import read_summary
from slipstream_tools.cli import main

from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S, eventually


def call(script: str, **more: object) -> dict[str, object]:
    return {"model": "acme", "messages": [{"role": "user", "content": script}], "temperature": 0, **more}


def bench(gateway: Any, file: Path, out: Path, *more: str) -> int:
    arguments = ("--url", gateway.url, "--requests", str(file), "--out", str(out), "--warmup", "1")
    return main(["bench", *arguments, *more])


def rows_of(out: Path) -> list[Row]:
    return read_results(out / "results.jsonl").rows


def test_every_request_runs_in_every_mode_and_round(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = two_arms()
    file = bench_file(*[call(f"tokens={n} gap=0.02", **{"class": "words"}) for n in (3, 5, 8)])
    out = tmp_path / "out"
    assert bench(gateway, file, out, "--concurrency", "1,2", "--rounds", "2", "--price", "3.6") == 0
    rows = rows_of(out)
    assert Counter((row.concurrency, row.mode) for row in rows) == Counter(
        {(level, mode): 6 for level in (1, 2) for mode in ("plain", "speculative", "routed")}
    )
    assert {row.arm for row in rows if row.mode == "plain"} == {"plain"}
    assert {row.arm for row in rows if row.mode == "speculative"} == {"speculative"}
    assert all(row.error is None and row.output_tokens in (3, 5, 8) for row in rows)
    assert all(0 < row.ttft_s < row.e2e_s for row in rows if row.ttft_s and row.e2e_s)
    one = next(row for row in rows if row.output_tokens == 8)
    assert one.tpot_s is not None
    assert 0 < one.tpot_s <= (one.e2e_s - one.ttft_s) / 7 * (1 + 1e-6)
    summary = read_summary(out / "summary.json")
    whole = summary.cells[0]
    assert (whole.request_class, whole.requests, whole.modes["plain"].answered) == ("all", 3, 6)
    assert whole.comparisons["speculative"].parity_equal == whole.comparisons["speculative"].parity_compared == 6
    assert summary.run.prices == {"plain": 3.6, "speculative": 3.6}
    assert (out / "report.html").stat().st_size > 1000
    assert "concurrency 2 (times in ms)" in capsys.readouterr().out


def test_requests_of_an_open_loop_do_not_wait_for_each_other(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = bench_file(*[call("tokens=10 gap=0.05") for _ in range(6)]), tmp_path / "out"
    assert bench(two_arms(), file, out, "--arrivals", "30,30x3", "--modes", "plain,speculative") == 0
    rows = rows_of(out)
    assert Counter((row.concurrency, row.mode) for row in rows) == Counter(
        {(load, mode): 6 for load in ("30/s", "30x3/s") for mode in ("plain", "speculative")}
    )
    assert all(row.error is None and row.in_flight is not None and 1 < row.in_flight <= 6 for row in rows)
    plain = sorted(row.started_s for row in rows if (row.concurrency, row.mode) == ("30x3/s", "plain"))
    assert plain[2] - plain[0] < 0.02 < plain[3] - plain[0]
    summary = read_summary(out / "summary.json")
    assert summary.run.concurrency == ("30/s", "30x3/s")
    assert "30x3/s (times in ms)" in capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert "--arrivals 30,30x3" in page


def test_only_routed_traffic_teaches_and_settings_are_the_same_in_all_modes(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path
) -> None:
    gateway = two_arms(", parityShare: 0")
    assert bench(gateway, bench_file(call("tokens=3", seed=7, max_tokens=9)), tmp_path / "out") == 0
    sent = gateway.plain.requests + gateway.speculative.requests
    assert len(sent) == 5  # a warm-up of both forced modes, and three measured
    assert {json.dumps({**body, "model": ""}, sort_keys=True) for body in sent} == {
        json.dumps(
            {**call("tokens=3", seed=7, max_tokens=9), "model": "", "stream": True,
             "stream_options": {"include_usage": True}},
            sort_keys=True,
        )
    }  # fmt: skip


def test_what_the_server_refuses_is_recorded_and_the_run_goes_on(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = two_arms()
    slow = call("tokens=2 gap=60")
    file = bench_file(call("tokens=3"), "no json", call("status=418"), slow, call("tokens=2", n=0), call("tokens=4"))
    out = tmp_path / "out"
    assert bench(gateway, file, out, "--modes", "plain,speculative", "--timeout", "4", "--seed", "5") == 0
    errors = {row.index: (row.status, row.error) for row in rows_of(out) if row.error and row.mode == "plain"}
    assert errors == {
        1: (418, "scripted"),
        2: (200, "no complete answer within 4 s"),
        3: (400, "Invalid 'n': expected 1 to 65536, got 0."),
    }
    captured = capsys.readouterr()
    assert "line 2: not JSON" in captured.err
    assert "6 of 10 answers failed and are left out; the first: " in captured.out
    assert "scripted" not in captured.out + (out / "summary.json").read_text()  # the server's own words
    summary = read_summary(out / "summary.json")
    assert (summary.run.skipped_lines, summary.run.failed_rows) == (1, 6)
    assert summary.cells[0].modes["plain"].answered == 2
    assert summary.cells[0].modes["plain"].failed == 3


def test_a_gateway_that_does_not_let_clients_choose_is_refused(
    gateway: Any, openai_server: Any, bench_file: Callable[..., Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    text = manifest_text([openai_server().url], [openai_server().url]).replace("allowClientMode: true, ", "")
    started = gateway(text.replace("allowClientMode: true", "allowClientMode: false"))
    assert bench(started, bench_file(call("tokens=3")), tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert "the gateway ignores the requested mode, so modes cannot be compared" in error
    assert "allowClientMode: true" in error


def test_a_server_without_arms_is_refused(
    openai_server: Any, bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(openai_server(), bench_file(call("tokens=3")), tmp_path / "out", "--modes", "plain") == 1
    assert "asked for the plain arm, answered by a server that names no arm" in capsys.readouterr().err


def test_a_gateway_that_is_not_there_ends_the_run(
    bench_file: Callable[..., Path], tmp_path: Path, free_ports: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    [port] = free_ports(1)
    arguments = ("--requests", str(bench_file(call("tokens=3"))), "--out", str(tmp_path / "out"), "--model", "acme")
    assert main(["bench", "--url", f"http://127.0.0.1:{port}", *arguments]) == 1
    assert f"http://127.0.0.1:{port}: cannot be reached" in capsys.readouterr().err
    assert rows_of(tmp_path / "out") == []


def test_checks_are_scored_in_every_mode(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path
) -> None:
    file = bench_file(
        call("tokens=2", check="contains", reference=["w0", "w1"]),
        call("tokens=2", check="contains", reference=["w0", "w7"]),
        call("tokens=1", check="label", reference="W0"),
    )
    out = tmp_path / "out"
    assert bench(two_arms(), file, out, "--modes", "plain,speculative") == 0
    quality = read_summary(out / "summary.json").cells[0].modes["speculative"].quality
    assert quality is not None
    assert (quality.checked, quality.passed) == (3, 2)
    assert quality.scores == {"contains": 0.75, "label": 1.0}
    assert {row.passed for row in rows_of(out) if row.index == 1} == {False}


def test_an_expectation_that_is_not_met_is_exit_code_3(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bench_file(call("tokens=3", **{"class": "words"}))
    arguments = (two_arms(), file, tmp_path / "out", "--modes", "plain,speculative", "--expect")
    assert bench(*arguments, "words=not-enough-data") == 0
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert bench(*arguments, "words=speculate") == 3  # everything is measured already: only the verdict is new
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before
    assert "expectation failed: words=speculate: at concurrency 1 it is 'not enough data'" in capsys.readouterr().err


def test_an_interrupted_run_goes_on_where_it_stopped(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path
) -> None:
    gateway = two_arms(", parityShare: 0")
    file = bench_file(*[call(f"tokens=4 gap=0.02 id={n}") for n in range(12)])
    out = tmp_path / "out"
    results = out / "results.jsonl"
    command = [sys.executable, "-m", "slipstream_tools.cli", "bench", "--url", gateway.url, "--requests", str(file)]
    command += ["--out", str(out), "--modes", "plain,speculative", "--warmup", "1"]
    # A suite that runs in a shell's background has SIGINT ignored, and so would have what it starts.
    before_test = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before_test)
    eventually(lambda: results.exists() and results.read_bytes().count(b'"phase":"measure"') >= 5, "five results")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted; the same command continues the run" in error
    before = rows_of(out)
    assert 5 <= len(before) < 24
    with results.open("ab") as file_end:
        file_end.write(b'{"index":11,"round":0,"mo')  # what a power cut would leave

    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    rows = rows_of(out)
    assert rows[: len(before)] == before
    assert sorted((row.index, row.mode) for row in rows) == sorted(
        (index, mode) for index in range(12) for mode in ("plain", "speculative")
    )
    asked = Counter(body["messages"][0]["content"] for body in gateway.plain.requests)
    assert sum(asked.values()) <= 12 + 2 + 1  # warm-ups of both sessions, and what was in flight
    assert read_summary(out / "summary.json").run.sessions == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--modes", "plain"), "'modes' was plain,speculative and is plain"),
        (("--concurrency", "2"), "'concurrency' was 1 and is 2"),
        (("--rounds", "2"), "'rounds' was 1 and is 2"),
        (("--seed", "1"), "'seed' was 0 and is 1"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], two_arms: Callable[..., Any],
    change: tuple[str, str], message: str,
) -> None:  # fmt: skip
    gateway, file, out = two_arms(), bench_file(call("tokens=1")), tmp_path / "out"
    assert bench(gateway, file, out, "--modes", "plain,speculative") == 0
    before = (out / "results.jsonl").read_bytes()
    assert bench(gateway, file, out, "--modes", "plain,speculative", *change) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Choose another --out" in error
    assert (out / "results.jsonl").read_bytes() == before


def test_other_requests_in_the_same_folder_are_refused(
    bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], two_arms: Callable[..., Any]
) -> None:
    gateway, out = two_arms(), tmp_path / "out"
    assert bench(gateway, file := bench_file(call("tokens=1")), out, "--modes", "plain") == 0
    assert bench(gateway, bench_file(call("tokens=2")), out, "--modes", "plain") == 2
    assert f"the requests were {file} and are {file}, with other content" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--modes", "fast"), "a mode is plain, routed, speculative, or speculative:N with N of 1 to 32, got 'fast'"),
        (("--modes", "plain,plain"), "--modes has 'plain' twice"),
        (("--modes", "speculative:33"), "got 'speculative:33'"),
        (("--draft-lengths", "2", "--modes", "plain"), "--draft-lengths needs the mode speculative"),
        (("--drafts", "ngram", "--url", "http://127.0.0.1:1"), "--drafts configures the servers that bench starts"),
        (("--write-policy", "p.yaml", "--modes", "routed"), "--write-policy needs the mode plain"),
        (("--write-policy", "p.yaml", "--drafts", "a,b"), "--write-policy needs a single draft"),
        (("--price-speculative", "2"), "--price-speculative needs the price of the plain arm"),
        (("--expect", "nothing"), "--expect is not-harmed"),
        (("--draft-lengths", "7"), "mode speculative:7: ModelPair/embedded has maxDraftTokens 6"),
        (("--requests", "no-such.jsonl"), "--requests: there is no file 'no-such.jsonl'"),
        (("--out", "/dev/null/x"), "--out /dev/null/x: Not a directory"),
        (("--model", "other"), "no ModelPair serves the model 'other'; it has: slipstream-embedded"),
    ],
)
def test_options_that_cannot_be_used_are_one_line(
    bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...],
    message: str,
) -> None:  # fmt: skip
    file = bench_file({"prompt": "Hello"})
    assert main(["bench", "--requests", str(file), "--out", str(tmp_path / "out"), *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_model_that_is_no_text_is_the_servers_to_refuse(
    bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bench_file({"prompt": "Hello", "model": "other"}, {"prompt": "Hello", "model": ["x"]})
    arguments = ["bench", "--requests", str(file), "--out", str(tmp_path / "out"), "--draft-lengths", "7"]
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "mode speculative:7: ModelPair/embedded has maxDraftTokens 6" in line
    assert main([*arguments, "--limit", "1"]) == 2  # what is left out names nothing
    assert "no ModelPair serves the model 'other'" in capsys.readouterr().err


def test_a_password_in_the_url_is_not_recorded(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path
) -> None:
    gateway, out = two_arms(), tmp_path / "out"
    arguments = ["--requests", str(bench_file(call("tokens=1"))), "--out", str(out), "--modes", "plain"]
    assert main(["bench", "--url", gateway.url.replace("://", "://me:hush@"), *arguments]) == 0
    assert read_summary(out / "summary.json").run.system == gateway.url
    assert not any(b"hush" in path.read_bytes() for path in out.iterdir())


def test_what_cannot_be_written_is_named_and_the_rest_is_kept(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway, file, out = two_arms(), bench_file(call("tokens=1")), tmp_path / "out"
    assert bench(gateway, file, out, "--modes", "plain", "--write-policy", "/dev/full") == 1
    assert "/dev/full: cannot be written: No space left on device" in capsys.readouterr().err
    assert (out / "summary.json").exists()
    assert (out / "report.html").exists()


@pytest.mark.integration
def test_a_missing_package_is_named_with_its_extra_before_anything_runs() -> None:
    code = (
        "import sys; sys.modules['vl_convert'] = None; from slipstream_tools.cli import main; sys.exit(main(['bench']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"requires the package 'vl_convert'; {how_to_install('bench')}" in done.stderr
