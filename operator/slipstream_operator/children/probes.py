"""The probes that decide whether a server is started, ready and alive."""

from __future__ import annotations

from typing import Any

_STARTUP_PERIOD_S = 5


def startup_probe(path: str, startup_s: int) -> dict[str, Any]:
    """The startup probe. The other two probes start after its success. Loading may take up to `startup_s`."""
    failures = -(-startup_s // _STARTUP_PERIOD_S)
    return _probe(path, period_s=_STARTUP_PERIOD_S, timeout_s=5, failures=failures)


def readiness_probe(path: str) -> dict[str, Any]:
    """The readiness probe. Triton is ready while all its models are ready."""
    return _probe(path, period_s=5, timeout_s=5, failures=3)


def liveness_probe(path: str) -> dict[str, Any]:
    """The liveness probe. Its limits are generous: a restart ends every stream and takes minutes to load, and a busy
    server may be slow to answer. Triton can be live and not ready for a long time
    (triton-inference-server/server#7154), so missing readiness causes no restart."""
    return _probe(path, period_s=20, timeout_s=10, failures=9)


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "successThreshold": 1,
        "failureThreshold": failures,
    }
