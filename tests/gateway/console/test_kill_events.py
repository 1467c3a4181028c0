"""Turns of kill switches: long names, the same time, and more pairs than the history keeps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest.kill_file import KillFile
from slipstream_core.manifest.kill_switch import MAX_EVENTS, MAX_PERSON_CHARS, KillEvent
from slipstream_core.settings import ClusterSettings
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.sources.cluster.source import ClusterSource

AT = "2026-11-28T12:00:00.000Z"


def turn(pair: str = "space/acme", *, on: bool = True, at: str = AT, by: str = "Ada") -> KillEvent:
    return KillEvent(at=at, pair=pair, on=on, by=by)


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


def connect(*_: Any, **__: Any) -> Any:
    raise AssertionError("there is no server")


@pytest.fixture
async def source(tmp_path: Path) -> ClusterSource:
    """Not entered, so that nothing is asked of a cluster."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")
    settings = ClusterSettings(kubeconfig=tmp_path / "kubeconfig", namespaces=("space",), report_namespace="space")
    return ClusterSource(settings, Fleet(connect, clock=time.monotonic))


def test_longest_name_of_a_person_with_a_key_is_read_again() -> None:
    event = turn(by="x" * MAX_PERSON_CHARS)
    assert msgspec.json.decode(msgspec.json.encode(event), type=KillEvent) == event


@pytest.mark.parametrize("order", [(True, False), (False, True)])
async def test_of_two_turns_at_one_time_the_kill_wins(
    order: tuple[bool, bool], source: ClusterSource, tmp_path: Path
) -> None:
    file = KillFile(tmp_path / "kills.json")
    for on in order:
        source.apply(turn(on=on))
        file.apply(turn(on=on))
    assert source.own_kills.pairs.keys() == file.kills.pairs.keys() == {"space/acme"}


async def test_more_kills_than_the_history_has_stay_in_force(source: ClusterSource) -> None:
    pairs = {f"space/p{number}" for number in range(MAX_EVENTS + 10)}
    for pair in pairs:
        source.apply(turn(pair))
    assert source.own_kills.pairs.keys() == pairs
