"""When a server counts as started, ready and alive."""

from __future__ import annotations

from typing import Any

_STARTUP_PERIOD_S = 5


def startup_probe(startup_s: int) -> dict[str, Any]:
    """The other two probes start after its success: loading may take all of `startup_s`."""
    failures = -(-startup_s // _STARTUP_PERIOD_S)
    return _probe("/v2/health/ready", period_s=_STARTUP_PERIOD_S, timeout_s=5, failures=failures)


def readiness_probe() -> dict[str, Any]:
    """Triton is ready while all its models are."""
    return _probe("/v2/health/ready", period_s=5, timeout_s=5, failures=3)


def liveness_probe() -> dict[str, Any]:
    """Generous: a restart ends every stream and loads for minutes, and a busy server may be slow to answer. Triton can
    be live and not ready for long (triton-inference-server/server#7154), so readiness is no ground for one."""
    return _probe("/v2/health/live", period_s=20, timeout_s=10, failures=9)


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "successThreshold": 1,
        "failureThreshold": failures,
    }
