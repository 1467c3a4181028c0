"""A run as text: the figures with their goals, then every case."""

from __future__ import annotations

from slipstream_kernels.spec_verify.benchmark import figures
from slipstream_kernels.spec_verify.benchmark.checks import Passed
from slipstream_kernels.spec_verify.benchmark.records import Run


def report(run: Run, passed: Passed) -> str:
    """Markdown, the figures last: a long report is read from its end."""
    parts = [
        "Cases: medians and quartiles of graph replays, inputs rotated past the L2 cache; "
        "the kernel is told where each request's rows start, but for the last column",
        figures.cases_table(run, passed),
        "Other kinds of drafts and requests (no goal)",
        figures.kinds_table(run, passed),
        "Baselines: µs, and how many times the kernel's time",
        figures.baselines_table(run, passed),
        *(f"not measured: {line}" for line in run.skipped),
        f"{run.machine}, {run.versions}, copy bandwidth {run.copy_bandwidth / 1e12:.2f} TB/s (read + written)",
        figures.table(figures.figures(run, passed)),
    ]
    return "\n\n".join(parts)
