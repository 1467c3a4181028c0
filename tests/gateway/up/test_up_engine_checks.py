"""What `slipstream up` says of the gateway's checks of its engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slipstream_tools.up.engine_checks import ServerCheck, read_checks, wait_checked
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import UpOptions

from tests.support.manifests import pair_yaml
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import dead_url, lasting_ports

UNVERIFIED = dict.fromkeys(("greedy_speculation", "sampled_speculation"), "engine_unverified")


class Gateway:
    """Says `answers` one after the other, and the last one from then on."""

    def __init__(self, *answers: list[ServerCheck] | OSError | None) -> None:
        self.answers = list(answers)

    def checks(self) -> list[ServerCheck] | None:
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


def check(**fields: Any) -> ServerCheck:
    known: dict[str, Any] = {"pair": "acme", "server": "http://v:1", "withheld": UNVERIFIED, **fields}
    [found] = read_checks(json.dumps({"data": [{"conformance": [known]}]}).encode())
    return found


def said(*answers: list[ServerCheck] | OSError | None, workers: int = 1, timeout_s: float = PATIENCE_S) -> list[str]:
    lines: list[str] = []
    assert wait_checked(
        Gateway(*answers), workers=workers, timeout_s=timeout_s, report=lines.append, stopping=lambda: False
    )
    return lines


FAILED = {
    "withheld": {"sampled_speculation": "engine_not_lossless"},
    "checked_s": 1.0,
    "findings": [
        {"subject": "greedy_speculation", "result": "pass", "detail": "4 greedy answers are equal"},
        {"subject": "sampled_speculation", "result": "fail", "detail": "not the target's", "evidence": 90.0},
    ],
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"withheld": {}, "checked_s": 1.0}, "checked, greedy and sampled requests may speculate"),
        (FAILED, "checked, no sampled_speculation (engine_not_lossless: not the target's)"),
        ({"waits_for": "it has no plugin"}, "not checked, decodes plainly: it has no plugin"),
    ],
)
def test_what_was_found_is_said_for_each_server(fields: dict[str, Any], words: str) -> None:
    """The answer after the result is not waited for."""
    answers = ([check()], OSError(), [check(), check()], [check(**fields)], [])
    assert said(*answers) == [f"acme at http://v:1: {words}"]


def test_a_server_that_was_not_checked_in_time_is_said_so() -> None:
    assert said([check(), check(withheld={}, checked_s=1.0)], timeout_s=0.1) == [
        "acme at http://v:1: not checked yet, decodes plainly until then",
        "acme at http://v:1: checked, greedy and sampled requests may speculate",
    ]


def test_several_gateways_and_keys_are_said() -> None:
    [_, several] = said([check(withheld={}, checked_s=1.0)], workers=3)
    assert several.startswith("each of the 3 gateways checks by itself")
    [keys] = said(None)
    assert "require a key" in keys


def test_it_ends_when_it_is_told_to() -> None:
    lines: list[str] = []
    ended = wait_checked(
        Gateway([check()]), workers=1, timeout_s=PATIENCE_S, report=lines.append, stopping=lambda: True
    )
    assert (ended, lines) == (False, [])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("policy", "timeout_s", "words"),
    [(None, PATIENCE_S, "ModelPair/pair has no SpeculationPolicy"), ("", 1.0, "not checked yet")],
    ids=["a pair that may not speculate", "a server that is down"],
)
def test_a_running_gateway_says_why_a_server_is_not_checked(
    tmp_path: Path, policy: str, timeout_s: float, words: str
) -> None:
    manifest = tmp_path / "pair.yaml"
    engine = f'{{kind: vllm, model: acme, endpoints: ["{dead_url()}"]}}'
    manifest.write_text(pair_yaml(engine, "maxDraftTokens: 4", policy=policy))
    [port] = lasting_ports(1)
    gateway = GatewayProcess(options=UpOptions(manifest=manifest, port=port, grpc_port=1), run_dir=tmp_path)
    try:
        lines: list[str] = []
        _answers(gateway)
        assert wait_checked(gateway, workers=1, timeout_s=timeout_s, report=lines.append, stopping=lambda: False)
    finally:
        gateway.stop()
    [line] = lines
    assert words in line


def _answers(gateway: GatewayProcess) -> None:
    """Waits until it answers: one whose servers are down does not become ready."""

    def answers() -> bool:
        assert gateway.child.exit_status() is None, gateway.child.log_tail()
        gateway.checks()
        return True

    eventually(answers, "an answer of the gateway", ignoring=OSError)
