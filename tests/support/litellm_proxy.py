"""A real LiteLLM proxy, in an environment of its own, with the callback of the example in `deploy/examples/litellm`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml
from slipstream_tools.up.processes import Child

from tests.support.extra_packages import CACHE
from tests.support.polling import eventually
from tests.support.ports import lasting_ports

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "litellm"
KEY = "sk-only-for-tests-5d8f1f6be4c24b7f"
_GATEWAY = Path(__file__).parents[2] / "gateway"
_REQUIREMENTS = Path(__file__).with_suffix(".txt")
_START_S = 300.0
_UV = Path(sys.executable).with_name("uv")


def litellm_folder() -> Path:
    """The environment with LiteLLM; the first call installs it, which takes a minute."""
    folder = CACHE / f"litellm-{hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for command in (
                ["venv", "--quiet", "--python", sys.executable, str(folder)],
                ["pip", "install", "--quiet", "--no-deps", "--python", str(folder), "-r", str(_REQUIREMENTS)],
            ):
                subprocess.run([str(_UV), *command], check=True)
            (folder / "complete").touch()
    return folder


class LiteLlmProxy:
    """Runs from its construction to `stop`. `models` are entries of LiteLLM's `model_list`. `callback` is the text of
    the module with the callback; None: LiteLLM alone. `router` are LiteLLM's `router_settings`."""

    def __init__(
        self,
        folder: Path,
        *,
        models: Sequence[Mapping[str, Any]],
        manifest: str = "",
        callback: str | None = (EXAMPLE / "slipstream_callback.py").read_text(encoding="utf-8"),
        router: Mapping[str, Any] | None = None,
        cores: Iterable[int] = (),
    ) -> None:
        [self.port] = lasting_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.manifest = folder / "pair.yaml"
        self.manifest.write_text(manifest, encoding="utf-8")
        config = yaml.safe_load((EXAMPLE / "config.yaml").read_text(encoding="utf-8"))
        config["model_list"], config["router_settings"] = list(models), dict(router or {})
        if callback is None:
            del config["litellm_settings"]
        else:
            (folder / "slipstream_callback.py").write_text(callback, encoding="utf-8")
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        environment = litellm_folder() / "bin"
        command = [str(environment / "python"), str(environment / "litellm"), "--config", "config.yaml"]
        pin = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        self._child = Child(
            name="LiteLLM",
            command=[*pin, *command, "--host", "127.0.0.1", "--port", str(self.port)],
            log_path=folder / "litellm.log",
            env={
                "PATH": os.environ["PATH"],
                "HOME": os.environ.get("HOME", "/"),
                "PYTHONPATH": str(_GATEWAY),
                "LITELLM_MASTER_KEY": KEY,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would be downloaded
            },
            cwd=folder,
        )
        try:
            eventually(self._is_ready, "LiteLLM", within_s=_START_S, seen=self.log, ignoring=httpx.TransportError)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def client(self) -> httpx.AsyncClient:
        """A client with LiteLLM's key."""
        return httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=120.0)

    def log(self) -> str:
        return self._child.log_path.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        self._child.stop(20.0)

    def _is_ready(self) -> bool:
        assert self._child.exit_code is None, self.log()
        return httpx.get(f"{self.url}/health/liveliness").status_code == 200


def vllm_model(name: str, url: str, *, model: str | None = None) -> dict[str, Any]:
    """LiteLLM's entry of the model `name` on a vLLM at `url`."""
    params = {"model": f"hosted_vllm/{model or name}", "api_base": f"{url}/v1", "api_key": "none"}
    return {"model_name": name, "litellm_params": params}
