"""The examples for data planes that Envoy runs in, and the chart's part of them. The plain example runs in
tests/gateway/envoy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from slipstream_core.types import Arm
from slipstream_tools import cli

from tests.charts.conftest import JSON, Only, Render
from tests.support.envoy import EXAMPLE, http_filters_of

FOLDER = Path(__file__).parents[2] / "deploy/examples/envoy"
ON: JSON = {"gateway": {"extProc": {"enabled": True}}}


def example(name: str) -> JSON:
    found: JSON = yaml.safe_load((FOLDER / name).read_text())
    return found


def plain_filter() -> JSON:
    [found] = [item for item in http_filters_of(example(EXAMPLE.name)) if item["name"].endswith("ext_proc")]
    config: JSON = found["typed_config"]
    return config


def test_the_chart_serves_the_filter_where_it_is_enabled(render: Render, only: Only) -> None:
    objects = render(ON)
    [container] = only(objects, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    assert "--ext-proc=[::]:9002" in container["args"]
    assert {"name": "grpc-extproc", "containerPort": 9002} in container["ports"]
    service = only(objects, "Service", "-gateway-extproc")["spec"]
    [port] = service["ports"]
    assert service["type"] == "ClusterIP"
    assert (port["port"], port["targetPort"], port["appProtocol"]) == (9002, "grpc-extproc", "grpc")
    assert "ext-proc" not in str(render())


def test_the_network_policy_lets_the_envoys_in(render: Render, only: Only) -> None:
    envoys = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "istio-system"}}}]
    values = {**ON, "networkPolicy": {"enabled": True, "gateway": {"extProcFrom": envoys}}}
    rules = only(render(values), "NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert {"ports": [{"protocol": "TCP", "port": 9002}], "from": envoys} in rules


def test_a_port_that_is_taken_is_refused(render: Render) -> None:
    with pytest.raises(Exception, match=r"gateway\.extProc\.port: 8081 is the port of gateway\.admin, too"):
        render({"gateway": {"extProc": {"enabled": True, "port": 8081}}})


def test_istios_filter_is_the_one_that_runs_in_the_tests() -> None:
    [patch] = example("istio.yaml")["spec"]["configPatches"]
    assert patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"] == "envoy.filters.http.router"
    assert patch["patch"]["operation"] == "INSERT_BEFORE"
    config = patch["patch"]["value"]["typed_config"]
    assert {**config, "grpc_service": {}} == {**plain_filter(), "grpc_service": {}}
    service = config["grpc_service"]["envoy_grpc"]["cluster_name"]
    assert service == "outbound|9002||slipstream-gateway-extproc.slipstream.svc.cluster.local"


def test_envoy_gateways_policy_says_the_same() -> None:
    [config] = example("envoy-gateway.yaml")["spec"]["extProc"]
    plain = plain_filter()
    modes = plain["processing_mode"]
    assert config["processingMode"] == {
        "allowModeOverride": plain["allow_mode_override"],
        "request": {"body": modes["request_body_mode"].capitalize()},
        "response": {"body": modes["response_body_mode"].capitalize()},
    }
    assert config["failOpen"] == plain["failure_mode_allow"]
    assert config["messageTimeout"] == plain["message_timeout"]
    assert config["metadata"]["writableNamespaces"] == plain["metadata_options"]["receiving_namespaces"]["untyped"]


def test_the_service_of_the_examples_is_the_charts(render: Render, only: Only) -> None:
    name = only(render(ON, name="slipstream", namespace="slipstream"), "Service", "-extproc")["metadata"]["name"]
    [backend] = example("envoy-gateway.yaml")["spec"]["extProc"][0]["backendRefs"]
    assert (backend["name"], backend["port"]) == (name, 9002)


def test_llm_ds_picker_has_a_profile_for_each_arm() -> None:
    config = example("llm-d.yaml")
    assert {profile["name"] for profile in config["schedulingProfiles"]} == set(Arm)
    names = {plugin.get("name", plugin["type"]) for plugin in config["plugins"]}
    used = {plugin["pluginRef"] for profile in config["schedulingProfiles"] for plugin in profile["plugins"]}
    assert used <= names
    [handler] = [plugin for plugin in config["plugins"] if plugin["type"] == "header-profile-handler"]
    assert handler["parameters"] == {"headerName": "x-slipstream-arm", "defaultProfile": Arm.PLAIN}


def test_the_compose_file_starts_what_the_page_starts() -> None:
    services = example("compose.yaml")["services"]
    mounted = {}
    for service in services.values():
        for volume in service["volumes"]:
            source, target, _ = volume.split(":")
            assert (FOLDER / source).is_file()
            mounted[target] = FOLDER / source
    slipstream = services["slipstream"]
    assert slipstream["image"].startswith("slipstream-gateway:")
    assert slipstream["entrypoint"] == ["slipstream", "extproc"]
    options = cli._parser("extproc").parse_args(slipstream["command"])
    assert options.ext_proc == "127.0.0.1:9002"
    assert mounted[str(options.manifest)].name == "vllm.yaml"
    assert services["envoy"]["command"][-1] in mounted
