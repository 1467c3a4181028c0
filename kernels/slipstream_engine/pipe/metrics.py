"""The load of a model in Triton's own metrics, for autoscalers.

Triton itself counts no running requests of a decoupled model: for Triton, `execute` has ended.
"""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

REQUESTS = "slipstream_engine_requests"


class RequestsGauge:
    """The gauge `slipstream_engine_requests{model=…}`."""

    def __init__(self, model: str) -> None:
        self._family = pb_utils.MetricFamily(
            name=REQUESTS,
            description="Running and waiting requests of the engine.",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        self._metric = self._family.Metric(labels={"model": model})
        self._shown = 0

    def show(self, requests: int) -> None:
        """Sets the gauge; a call without a change costs nothing."""
        if requests != self._shown:
            self._metric.set(requests)
            self._shown = requests
