"""What the chart hands to the processes is what their command lines take."""

from __future__ import annotations

import argparse

import pytest
from slipstream_operator import command as operator_command
from slipstream_tools.gateway import options as gateway_options

from tests.charts.conftest import JSON, Only, Render

COMMANDS = {"gateway": gateway_options.add_arguments, "operator": operator_command.add_arguments}


def parsed(component: str, container: JSON) -> argparse.Namespace:
    """The container's arguments by the command's own parser, which ends the test where it does not take them."""
    assert container["command"] == ["slipstream"]
    name, *arguments = container["args"]
    assert name == component
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[component](parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("component", COMMANDS)
def test_arguments_are_taken_whatever_values_say(component: str, variant: list[JSON], only: Only) -> None:
    [container] = only(variant, "Deployment", f"-{component}")["spec"]["template"]["spec"]["containers"]
    assert parsed(component, container).host == "::"  # both address families


def test_gateway_gets_what_values_say(render: Render, only: Only) -> None:
    values = {
        "watchNamespaces": ["team-a"],
        "gateway": {
            "drainSeconds": 77,
            "logLevel": "debug",
            "limits": {"maxInFlight": 11, "maxQueued": 0, "maxBodyBytes": 50_000_000, "totalTimeoutSeconds": 1800},
            "extraArgs": ["--first-chunk-timeout=33", "-f", "/etc/slipstream/fallback.yaml"],
        },
    }
    [container] = only(render(values), "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    found = parsed("gateway", container)
    assert (found.source, found.port, found.namespace) == ("kubernetes", 8080, ["team-a"])
    assert (found.workers, found.drain, found.log_level) == (1, 77.0, "debug")
    assert (found.max_in_flight, found.max_queued, found.max_body_bytes) == (11, 0, 50_000_000)
    assert (found.total_timeout, found.first_chunk_timeout) == (1800.0, 33.0)
    assert str(found.manifest) == "/etc/slipstream/fallback.yaml"
    assert found.report_namespace == "serving"


def test_ports_of_the_containers_are_those_that_processes_listen_on(render: Render, only: Only) -> None:
    objects = render()
    for component, options in (("gateway", {"http": "port"}), ("operator", {"probes": "liveness_port"})):
        [container] = only(objects, "Deployment", f"-{component}")["spec"]["template"]["spec"]["containers"]
        found = parsed(component, container)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for name, option in options.items():
            assert ports[name] == getattr(found, option)
