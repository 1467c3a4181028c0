"""What was measured, as values; written to JSON as they are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from slipstream_kernels.spec_verify.benchmark.cases import Case
from slipstream_kernels.spec_verify.benchmark.timing import Time


class What(Enum):
    """What was timed."""

    KERNEL = "kernel"
    ALL_ROWS = "kernel, reading all rows"
    PACKED = "kernel, adding up row starts itself"
    EAGER = "eager PyTorch"
    COMPILED = "torch.compile"
    FLASHINFER = "FlashInfer, probabilities given"
    FLASHINFER_SOFTMAX = "FlashInfer with its softmax"
    FOUR_LAUNCHES = "four launches, fp32 copy given"
    FOUR_LAUNCHES_COPY = "four launches with their fp32 copy"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One case of one implementation. `needed_bytes` is what these inputs made it read at least, per call."""

    case: Case
    what: What
    time: Time
    needed_bytes: float
    all_rows_bytes: float
    mean_accepted: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak bytes that one call allocated, outputs and workspace included."""

    case: Case
    bytes: int


@dataclass(kw_only=True)
class Run:
    """Everything that one run of the benchmark found."""

    machine: str
    versions: str
    copy_bandwidth: float
    """Bytes per second, read plus written."""
    measured: list[Measured] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What was not measured, and why."""

    def find(self, what: What, case: Case) -> Measured | None:
        """The measurement of `what` on `case`; None where there is none."""
        return next((one for one in self.measured if one.what is what and one.case == case), None)

    def write(self, path: Path, findings: tuple[str, ...]) -> None:
        """As JSON, with what the checks of the same process found."""
        document = {"checks": findings, **asdict(self)}
        path.write_text(json.dumps(document, indent=1, default=_plain, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} has no place in the results")
