"""Command-line options that are made from the fields of settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from slipstream_core.arguments import AtLeastOne, File, OnOff, Port, Seconds, add_options, option, read_options
from slipstream_core.settings import Deadlines, HealthSettings, Limits, OverloadSettings
from slipstream_tools.gateway import options as gateway_options


class Example(msgspec.Struct, frozen=True, kw_only=True):
    wait_s: Annotated[Seconds, option("longest wait")] = 5.0
    many: Annotated[AtLeastOne, option("how many", "-n", "--number-of-things")] = 3
    port: Annotated[Port | None, option("a port, 100% free")] = None
    names: Annotated[tuple[str, ...], option("a name", metavar="NAME")] = ("all",)
    file: Annotated[File | None, option("a file")] = None
    is_on: Annotated[OnOff, option("whether", "--feature")] = True
    loud: Annotated[bool, option("whether")] = False
    hidden: int = 7


def read(*given: str) -> Example:
    parser = argparse.ArgumentParser()
    add_options(parser, Example)
    return read_options(parser.parse_args(given), Example)


def test_without_options_the_defaults_of_the_fields_hold() -> None:
    assert read() == Example()


def test_every_kind_of_field_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = "--wait=2 -n4 --port=80 --names=a --names=a --file=x --feature=off --loud"
    assert read(*options.split()) == Example(
        wait_s=2.0, many=4, port=80, names=("a", "a"), file=tmp_path / "x", is_on=False, loud=True
    )


def test_an_error_names_the_option_and_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    for given, message in (
        (("--wait", "0"), "argument --wait: expected seconds above 0, got '0'"),
        (("-n", "0"), "argument -n/--number-of-things: expected 1 or more, got 0"),
        (("--port", "70000"), "argument --port: expected 0 to 65535, got 70000"),
    ):
        with pytest.raises(SystemExit):
            read(*given)
        assert capsys.readouterr().err.rstrip().endswith(message)


def test_help_has_descriptions_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--wait SECONDS longest wait (default: 5)" in text
    assert "--port N a port, 100% free --" in text
    assert "--feature {on,off} whether (default: on)" in text


@pytest.mark.parametrize("settings", [Deadlines, Limits, HealthSettings, OverloadSettings])
def test_a_gateway_without_options_has_the_default_settings(settings: type[msgspec.Struct]) -> None:
    parser = argparse.ArgumentParser()
    gateway_options.add_arguments(parser)
    assert read_options(parser.parse_args([]), settings) == settings()
