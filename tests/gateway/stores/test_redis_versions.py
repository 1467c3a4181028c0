"""Gateways and operators of the version before read this version's outcomes, and the other way round."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from slipstream_core.observation import Observation, ParityResult
from slipstream_core.redis.outcome_stream import decode, encode
from slipstream_core.types import TREATMENT, Arm, Reason

from tests.gateway.stores.outcomes import observation
from tests.support.earlier_release import RELEASE, environment_of, extract

pytestmark = pytest.mark.integration

# What the version before decodes from its input, as a list without types.
READ = """
import msgspec, sys
from slipstream_core.redis.outcome_stream import decode
found = decode(sys.stdin.buffer.read(), pair="acme")
sys.stdout.buffer.write(msgspec.msgpack.encode(found))
"""
# What it encodes of the fields in its input.
WRITE = """
import msgspec, sys
from slipstream_core.observation import Observation
from slipstream_core.redis.outcome_stream import encode
found = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[Observation])
sys.stdout.buffer.write(encode(found, first=1, since_s=0.0).payload)
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the version before."""
    tree = extract(tmp_path_factory.mktemp("earlier") / "tree")
    if tree is None:
        pytest.skip(f"this checkout has no commit of {RELEASE}: it is a shallow one")
    return tree


def run(tree: Path, program: str, data: bytes) -> bytes:
    environment = {**os.environ, **environment_of(tree)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, input=data, env=environment, check=True, capture_output=True).stdout


def outcomes() -> list[Observation]:
    """One for each reason, and one with each field that has a default."""
    details = {"parity": ParityResult.MATCH, "priced_s": 1.0, "revision": "r", "canary": True, "cut": True}
    found = [observation(number, reason=reason) for number, reason in enumerate(Reason)]
    return [*found, observation(len(found), arm=Arm.CONTROL, content={"refused": (3,)}, **details)]


def test_the_version_before_reads_every_outcome(before: Path) -> None:
    sent = outcomes()
    frame = encode(sent, first=1)
    assert frame is not None
    read = msgspec.msgpack.decode(run(before, READ, frame.payload), type=list[Observation])
    for one, found in zip(sent, read, strict=True):
        # A reason that it does not know arrives as one that readers treat alike.
        assert found.reason is one.reason or {found.reason, one.reason} <= TREATMENT
        assert msgspec.structs.replace(found, reason=one.reason, content=one.content) == one


def test_outcomes_of_the_version_before_are_read(before: Path) -> None:
    sent = [one for one in outcomes() if one.reason is not Reason.SPECULATION_MAY_PAY]
    payload = run(before, WRITE, msgspec.msgpack.encode(sent))
    read = decode(payload, pair="acme")
    assert read is not None
    assert [msgspec.structs.replace(one, content=None) for one in sent] == read
