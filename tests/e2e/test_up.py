"""`slipstream up`, the main job: start, paste the three printed commands, Ctrl-C."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.pasted import run_pasted
from tests.support.command import SCRIPT, arguments_of
from tests.support.http_server import Reply, answering
from tests.support.manifests import arm, external, pair_yaml
from tests.support.polling import eventually
from tests.support.ports import dead_url
from tests.support.streams import whole_events_of

pytestmark = pytest.mark.timeout(240)


def mine(source: str, draft: str) -> str:
    fields = (f"target: {{source: {source}}}", f"draft: {{kind: {draft}}}")
    return pair_yaml("{kind: slipstream}", *fields, name="mine", model="mine")


def elsewhere(url: str) -> str:
    return pair_yaml(external(arm(url, model="theirs")), name="elsewhere", model="theirs")


def _up(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, "up", *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_three_printed_commands_show_the_job_and_ctrl_c_leaves_nothing(start_up: Callable[..., Any]) -> None:
    up = start_up()
    summary, label, explain = up.commands

    headers, body = run_pasted(summary)
    assert headers["x-slipstream-arm"] == "speculative"
    assert headers["x-slipstream-class"].startswith("summarization/")
    assert int(headers["x-slipstream-draft-length"]) > 0
    usage = whole_events_of(body)[-1]["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 0

    headers, body = run_pasted(label)
    assert headers["x-slipstream-class"].endswith("/short")
    assert (headers["x-slipstream-arm"], headers["x-slipstream-reason"]) == ("plain", "break_even")
    assert json.loads(body)["choices"][0]["message"]["content"].strip()

    _, body = run_pasted(explain)
    explained = json.loads(body)
    assert explained["arm"] in ("plain", "speculative")
    assert (explained["reason"] == "speculation_pays") is (explained["saving_s"] > explained["numbers"]["margin_s"])

    assert len(up.children) >= 3
    assert up.stop(signal.SIGINT) == 0
    assert up.left_behind() == []


def test_killed_up_leaves_no_process(start_up: Callable[..., Any]) -> None:
    up = start_up()
    assert up.stop(signal.SIGKILL) == -signal.SIGKILL
    assert up.left_behind() == []


def test_temporary_folder_with_characters_of_the_shell_serves_and_sigterm_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_up: Callable[..., Any]
) -> None:
    odd = tmp_path / "it's a $b;c"
    odd.mkdir()
    monkeypatch.setenv("TMPDIR", str(odd))
    up = start_up()
    [triton] = [child for child in up.children if "bin/tritonserver" in " ".join(arguments_of(child))]
    folder = Path(triton.cwd())
    assert folder.name.startswith("slipstream-")
    run_pasted(up.commands[1])
    assert up.stop(signal.SIGTERM) == 0
    assert up.left_behind() == []
    assert not folder.exists()
    assert list(odd.iterdir()) == []


def test_triton_that_is_killed_or_starved_comes_back_behind_the_same_gateway(start_up: Callable[..., Any]) -> None:
    """Triton gives its Python process up if that is paused for a second while a request arrives. The command is stopped
    during the second restart."""
    up = start_up()
    up.child("bin/tritonserver").kill()
    refused = eventually(lambda: _refused(up.url), "a refusal")
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["message"] == "No server for the model 'slipstream-embedded' is up."
    not_ready = eventually(lambda: _refused(up.url, "/health/ready"), "it is not ready")
    assert not_ready.json()["models"] == {"slipstream-embedded": "no server responds"}
    back_s = _back(up)
    assert [_answer(up.url).status_code for _ in range(3)] == [200] * 3
    eventually(lambda: _checked_s(up.url) > back_s, "the server was checked again")

    stub = up.child("python_backend_stub")
    stub.suspend()
    assert _answer(up.url).status_code in (502, 503)
    stub.resume()
    lines = iter(up.process.stdout.readline, "")
    assert any("is up again" in line for line in lines)
    assert any("it is started again" in line for line in lines)
    up.look()
    assert up.stop(signal.SIGTERM) == 0
    assert up.left_behind() == []


def _answer(url: str) -> httpx.Response:
    """The answer to a new prompt: one that breaks servers would be refused."""
    body = {"model": "slipstream-embedded", "messages": [{"role": "user", "content": str(time.monotonic())}]}
    return httpx.post(f"{url}/v1/chat/completions", json={**body, "max_tokens": 2}, timeout=30)


def _refused(url: str, path: str = "") -> httpx.Response | None:
    answer = httpx.get(f"{url}{path}", timeout=30) if path else _answer(url)
    return answer if answer.status_code == 503 else None


def _back(up: Any) -> float:
    """The time when the gateway is ready again; `up` then has the present children."""
    eventually(lambda: httpx.get(f"{up.url}/health/ready", timeout=30).status_code == 200, "the gateway is ready")
    up.look()
    return time.time()


def _checked_s(url: str) -> float:
    [pair] = httpx.get(f"{url}/v1/evidence").json()["data"]
    return max(server["checked_s"] or 0.0 for server in pair["conformance"])


@pytest.fixture
def external_server() -> Iterator[str]:
    """Something that answers probes as an OpenAI-compatible server: its URL."""

    with answering(lambda _: Reply(body=b'{"object": "list", "data": []}')) as url:
        yield url


def test_external_pairs_need_no_triton(tmp_path: Path, external_server: str, start_up: Callable[..., Any]) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(elsewhere(external_server))
    up = start_up("-f", str(manifest))
    assert not any("triton" in part for child in up.children for part in arguments_of(child))
    assert json.loads(run_pasted(up.commands[2])[1])["reason"] == "no_policy"
    assert up.stop() == 0
    assert up.left_behind() == []


def test_keys_are_asked_for_and_the_printed_commands_send_one(
    tmp_path: Path, external_server: str, start_up: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, keys = tmp_path / "pair.yaml", tmp_path / "keys.json"
    manifest.write_text(elsewhere(external_server))
    made = subprocess.run([SCRIPT, "keys", "create", "-f", str(keys)], capture_output=True, text=True, check=True)
    up = start_up("-f", str(manifest), "--keys", str(keys))
    assert json.loads(run_pasted(up.commands[2])[1])["error"]["code"] == "invalid_api_key"
    monkeypatch.setenv("SLIPSTREAM_API_KEY", made.stdout.strip())
    assert json.loads(run_pasted(up.commands[2])[1])["reason"] == "no_policy"
    assert up.stop() == 0


def test_external_server_that_is_not_there_is_named(tmp_path: Path, up_options: list[str]) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(elsewhere(dead_url()))
    for limit in ("4", "10", "20"):  # a busy machine needs longer to start a gateway that can say what is missing
        done = _up("-f", str(manifest), *up_options, "--timeout", limit)
        if "no server responds" in done.stderr:
            break
    assert done.returncode == 1
    assert f"the gateway is not ready after {limit} s" in done.stderr
    assert '"theirs":"no server responds"' in done.stderr


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_port_in_use_is_named_with_its_option(up_options: list[str], option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        done = _up(*up_options, option, str(port))
    assert done.returncode == 1
    assert done.stderr == f"slipstream: error: port {port} is in use; choose another with {option}\n"


def test_one_port_for_two_servers_is_refused(up_options: list[str]) -> None:
    done = _up(*up_options, "--http-port", up_options[1])
    assert done.returncode == 1
    assert done.stderr == (f"slipstream: error: port {up_options[1]} is set by both --port and --http-port\n")


@pytest.mark.parametrize("option", [("--engine", "vllm"), ("--model", "smollm2")])
def test_engine_and_model_are_the_manifest_s_business(
    tmp_path: Path, up_options: list[str], option: tuple[str, str]
) -> None:
    done = _up("-f", str(tmp_path / "pair.yaml"), *up_options, *option)
    assert done.returncode == 2
    assert done.stderr == (
        f"slipstream: error: {' '.join(option)} selects a model of the package and cannot be combined with -f, "
        "whose manifest has its own\n"
    )


@pytest.mark.parametrize(
    "argument", ["--model=x", "--served_model_name", "--port=1", "--speculative-config.method=ngram"]
)
def test_vllm_s_own_options_are_refused_where_up_sets_them(up_options: list[str], argument: str) -> None:
    done = _up(*up_options, "--engine", "vllm", f"--vllm-arg={argument}")
    assert done.returncode == 2
    assert "is set by 'slipstream up'" in done.stderr


def test_vllm_s_options_without_vllm_are_refused(up_options: list[str]) -> None:
    done = _up(*up_options, "--vllm-arg=--max-model-len=512")
    assert done.returncode == 2
    assert "--vllm-arg has no effect: no pair of the manifest needs vLLM here" in done.stderr


def test_python_without_vllm_is_refused(up_options: list[str]) -> None:
    done = _up(*up_options, "--engine", "vllm", "--vllm-python", sys.executable)
    assert done.returncode == 1
    assert done.stderr == f"slipstream: error: {sys.executable}: vLLM is not installed for this Python\n"


def test_missing_manifest_is_one_line(tmp_path: Path, up_options: list[str]) -> None:
    done = _up("-f", str(tmp_path / "none.yaml"), *up_options)
    assert done.returncode != 0
    assert done.stderr == f"slipstream: error: {tmp_path / 'none.yaml'}: cannot be read: No such file or directory\n"


def test_bad_manifest_names_the_field(tmp_path: Path, up_options: list[str]) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(mine("target", "magic"))
    done = _up("-f", str(manifest), *up_options)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert "pair.yaml: ModelPair/mine: spec.draft.kind" in done.stderr


def test_missing_checkpoint_folder_is_one_line(tmp_path: Path, up_options: list[str]) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(mine("./target", "ngram"))
    done = _up("-f", str(manifest), *up_options)
    assert done.returncode == 1
    expected = f"ModelPair/mine: spec.target.source: there is no folder {tmp_path / 'target'}"
    assert done.stderr == f"slipstream: error: {expected}\n"


def test_checkpoint_that_cannot_be_loaded_says_why(tmp_path: Path, up_options: list[str]) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"architectures": ["Mamba"], "model_type": "mamba"}')
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(mine("./target", "none"))
    done = _up("-f", str(manifest), *up_options)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("slipstream: error: Triton exited with code 1 while starting: ")
    assert "mamba" in last.lower()
    assert "Traceback" not in done.stderr
