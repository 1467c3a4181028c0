"""The gateway does not listen for other machines without keys, unless it is told to."""

from __future__ import annotations

import pytest
from slipstream_core.hosts import is_loopback
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_tools.cli import main


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_addresses_of_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "no-such-host.invalid"]
)
def test_every_other_address_counts_as_reachable(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "options",
    [["--host", "0.0.0.0"], ["--host", "::"], ["--admin-port", "0", "--admin-host", "0.0.0.0"]],
)
def test_gateway_refuses_to_let_everybody_in(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "-f", str(EMBEDDED_MANIFEST), "--port", "0", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert options[-2] in line
    assert "--keys FILE, or --allow-anonymous" in line


def test_up_refuses_before_it_starts_anything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--host", "0.0.0.0"]) == 2
    assert "--allow-anonymous" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--open-metrics"], "--open-metrics is for the admin port"),
        (["--admin-host", "0.0.0.0"], "--admin-host is for the admin port"),
        (["--port", "8123", "--admin-port", "8123"], "--admin-port and --port are both 8123"),
    ],
)
def test_options_that_say_nothing_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gateway", "-f", str(EMBEDDED_MANIFEST), *options]) == 2
    assert message in capsys.readouterr().err
