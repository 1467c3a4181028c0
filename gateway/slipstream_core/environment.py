"""Settings that come from environment variables. A cluster's variables are read in `kube.environment`."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.settings import Pod, TelemetrySettings

CACHE_VARIABLE = "SLIPSTREAM_VLLM_HOME"


def telemetry_settings(environ: Mapping[str, str] = os.environ) -> TelemetrySettings:
    """From the OpenTelemetry specification's variables. A signal is exported if it has an OTLP endpoint, unless
    `OTEL_SDK_DISABLED` or `OTEL_{TRACES,METRICS}_EXPORTER=none` disables it."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return TelemetrySettings()
    return TelemetrySettings(
        export_traces=_exports(environ, "TRACES"),
        export_metrics=_exports(environ, "METRICS"),
    )


def _exports(environ: Mapping[str, str], signal: str) -> bool:
    exporters = [part.strip() for part in environ.get(f"OTEL_{signal}_EXPORTER", "otlp").split(",")]
    endpoint = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return "otlp" in exporters and bool(endpoint)


def secret(name: str) -> str | None:
    """The API key in the environment variable `name`; None if unset or empty. White space around it does not count:
    files and Secrets often end with a line break.

    Raises:
        CommandError: it cannot be sent in a header (RFC 9110, 5.5).
    """
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        odd = next(character for character in key if not (character.isascii() and character.isprintable()))
        raise CommandError(f"the environment variable {name} is no API key: it contains {odd!a}", exit_code=2)
    return key or None


def user() -> str:
    """The name of this process's user, for records; the number of a user without a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return str(os.getuid())


def redis_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """Value of `SLIPSTREAM_REDIS_URL`; None if unset or empty."""
    return environ.get("SLIPSTREAM_REDIS_URL") or None


def pod(environ: Mapping[str, str] = os.environ) -> Pod | None:
    """The pod of this process, from `POD_NAME` and `POD_UID`; None unless both are set."""
    name, uid = environ.get("POD_NAME"), environ.get("POD_UID")
    return Pod(name=name, uid=uid) if name and uid else None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Cache of `slipstream up`: `$SLIPSTREAM_VLLM_HOME`, else `slipstream` in the user's cache folder. The path is
    absolute; the folder may not exist yet."""
    if home := environ.get(CACHE_VARIABLE):
        return Path(home).expanduser().absolute()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "slipstream"
