"""Who speculates and who is held back: by the request id, under a secret that gateways of a deployment share."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.settings import ASSIGNMENT_VARIABLE, GatewaySettings
from slipstream_gateway.decide.route.draws import RequestDraws
from slipstream_tools.cli import main
from slipstream_tools.gateway import options as gateway_options
from slipstream_tools.gateway.options.checks import secret_of
from slipstream_tools.up.assignment_secret import demo_request_id, secret_options

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import Process
from tests.support.polling import PATIENCE_S

IDS = [f"id-{number}" for number in range(60)]
HALF = ", confidence: 0.6, holdBackShare: 0.5"
TEXT = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4


@pytest.fixture
def manifest(openai_server: Callable[..., Any]) -> str:
    """Half of its requests are held back."""
    return manifest_text([openai_server().url], [openai_server().url], policy=HALF)


def assigned(url: str, body: dict[str, Any], ids: list[str] = IDS) -> list[str]:
    """The reason of each request's decision, each on a connection of its own, so that any worker may answer."""
    reasons = []
    for request_id in ids:
        answer = httpx.post(f"{url}/v1/route", json=body, headers={"x-request-id": request_id}, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        reasons.append(answer.json()["reason"])
    return reasons


def test_gateways_with_one_secret_assign_alike_and_others_do_not(
    run_gateway: Callable[..., Any], manifest: str, tmp_path: Path
) -> None:
    found = []
    for number, secret in enumerate((b"one secret", b"one secret", b"another secret")):
        with run_gateway(tmp_path / f"pair-{number}.yaml", manifest, assignment_secret=secret) as started:
            found.append(assigned(started.url, chat(TEXT)))
    assert set(found[0]) == {"speculation_pays", "hold_back"}
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_ids_that_a_client_picks_by_a_hash_without_the_secret_are_held_back_like_all(
    gateway: Callable[..., Any], manifest: str
) -> None:
    """By the hash that stands in this repository, all of them would speculate."""
    names = (f"picked-{number}" for number in range(1000))
    picked = [name for name in names if blake2b(name.encode(), digest_size=16).digest()[3] >= 128][: len(IDS)]
    reasons = assigned(gateway(manifest).url, chat(TEXT), picked)
    assert 10 < reasons.count("hold_back") < 50


def test_workers_share_the_secret_that_was_made_for_them(start: Callable[..., Process], manifest: str) -> None:
    process = start(manifest, "--workers", "2", "--drain", "1", "--conformance", "off")
    first = assigned(process.url, chat(TEXT))
    assert set(first) == {"speculation_pays", "hold_back"}
    assert all(assigned(process.url, chat(TEXT)) == first for _ in range(3))


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    gateway_options.add_arguments(parser)
    return parser.parse_args(given)


def test_a_secret_comes_from_its_file_else_from_the_environment_else_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(ASSIGNMENT_VARIABLE, raising=False)
    made = {secret_of(options(), shares=False) for _ in range(2)}
    assert [len(secret) for secret in made] == [32, 32]
    monkeypatch.setenv(ASSIGNMENT_VARIABLE, "of the environment\n")
    assert secret_of(options(), shares=True) == b"of the environment"
    file = tmp_path / "secret"
    file.write_text("of the very file\n")
    assert secret_of(options("--assignment-secret", str(file)), shares=True) == b"of the very file"
    assert capsys.readouterr().err == ""


def test_gateways_that_share_and_have_no_secret_are_warned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(ASSIGNMENT_VARIABLE, raising=False)
    secret_of(options(), shares=True)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("slipstream: warning: gateways that share Redis or a cluster need one --assignment-secret")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.write_text("short"), lambda path: None])
def test_a_secret_that_cannot_be_used_stops_a_start(
    tmp_path: Path, make: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    make(file := tmp_path / "secret")
    assert main(["gateway", "-f", str(EMBEDDED_MANIFEST), "--assignment-secret", str(file), "--port", "0"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"slipstream: error: --assignment-secret {file}: ")
    assert "short" not in line


def test_a_short_secret_of_the_environment_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSIGNMENT_VARIABLE, "hunter2")
    with pytest.raises(CommandError, match=f"{ASSIGNMENT_VARIABLE}: a secret has at least 16 bytes, this one has 7"):
        secret_of(options(), shares=False)


def test_settings_do_not_show_it() -> None:
    assert "hunter2" not in repr(GatewaySettings(assignment_secret=b"hunter2"))


def test_up_makes_a_secret_once_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASSIGNMENT_VARIABLE, raising=False)
    folder = tmp_path / "cache"
    option, path = secret_options(folder)
    file = Path(path)
    first = file.read_bytes()
    assert (option, len(first), stat.S_IMODE(file.stat().st_mode)) == ("--assignment-secret", 64, 0o600)
    assert secret_options(folder) == (option, path)
    assert file.read_bytes() == first
    assert list(folder.iterdir()) == [file]
    assert secret_of(options(option, path), shares=True) == first
    monkeypatch.setenv(ASSIGNMENT_VARIABLE, "of the environment")
    assert secret_options(folder) == ()


def test_the_demonstration_has_a_request_that_is_not_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any secret: a fixed id would be held back on every tenth machine."""
    names = set()
    for number in range(30):
        monkeypatch.setenv(ASSIGNMENT_VARIABLE, f"a secret of its own, {number}")
        names.add(name := demo_request_id(tmp_path))
        draws = RequestDraws(secret_of(options(), shares=False)).of(name)
        assert min(draws.hold_back, draws.exploration) > 0.5
    assert "demo" in names
    assert len(names) > 2
    monkeypatch.delenv(ASSIGNMENT_VARIABLE)
    secret = secret_of(options(*secret_options(tmp_path)), shares=False)
    assert RequestDraws(secret).of(demo_request_id(tmp_path)).hold_back > 0.5
    (tmp_path / "file").touch()
    assert demo_request_id(tmp_path / "file") == "demo"


def test_up_goes_on_where_no_secret_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASSIGNMENT_VARIABLE, raising=False)
    (tmp_path / "file").touch()
    assert secret_options(tmp_path / "file") == ()
