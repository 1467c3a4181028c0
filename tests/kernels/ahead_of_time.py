"""Compile kernels for GPUs that are not here, as a launch with given arguments would, and see what came out.

Only for a process of its own without `TRITON_INTERPRET`: as a program it prints the figures of the launches' variants.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from slipstream_kernels import LogitAdjustments, SamplingBatch
from slipstream_kernels.sampling import TILE
from slipstream_kernels.spec_verify import kernel
from slipstream_kernels.spec_verify.kernel_arguments import Launch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_DIVISIBLE = [["tt.divisibility", 16]]


class Compiled(NamedTuple):
    """One kernel's machine code and what it takes."""

    registers: int
    stack: int
    """Bytes per thread of local memory: 0 if nothing is spilled."""
    local: int
    shared: int
    sass: str


def compile_ahead(
    function: Any,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    *,
    capability: int,
    warps: int,
    stages: int = 1,
    registers: int | None = None,
) -> Compiled:
    """`function` as it is compiled for `arguments` on a GPU of `capability`: tensors aligned to 16 bytes, integers
    divisible by 16 where theirs are."""
    signature: dict[str, Any] = {}
    constexprs: dict[Any, Any] = dict(constants)
    attributes: dict[tuple[int, ...], Any] = {}

    def kind(value: Any, path: tuple[int, ...]) -> Any:
        if isinstance(value, tuple):
            kinds = [kind(member, (*path, i)) for i, member in enumerate(value)]
            return type(value)(*kinds)
        if value is None or (isinstance(value, int) and value == 1):
            constexprs[path] = value
            return "constexpr"
        if isinstance(value, Tensor):
            attributes[path] = _DIVISIBLE
            return _TYPES[value.dtype]
        if value % 16 == 0:
            attributes[path] = _DIVISIBLE
        return "i32" if abs(value) < 2**31 else "i64"

    for i, (parameter, value) in enumerate(zip(function.params, arguments, strict=False)):
        signature[parameter.name] = "i32" if parameter.do_not_specialize else kind(value, (i,))
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature=signature, constexprs=constexprs, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False, "maxnreg": registers}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return inspect(made.asm["cubin"])


def inspect(cubin: bytes) -> Compiled:
    """What `cuobjdump` and `nvdisasm` say about a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        sass = _run("nvdisasm", "-c", file.name)
    found = [re.search(rf"\b{name}:(\d+)", usage) for name in ("REG", "STACK", "LOCAL", "SHARED")]
    return Compiled(*(int(match.group(1)) for match in found if match), sass)


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], check=True, capture_output=True, text=True).stdout


def compile_call(call: kernel.Call, launch: Launch, capability: int) -> dict[str, int]:
    """The figures of one launch for a GPU of `capability`."""
    warps = call.options["num_warps"]
    made = compile_ahead(
        call.kernel,
        call.arguments,
        call.constants,
        capability=capability,
        warps=warps,
        registers=call.options.get("maxnreg"),
    )
    return {
        "registers": made.registers,
        "stack": made.stack,
        "local": made.local,
        "spills": made.sass.count("STL"),
        "wide_loads": made.sass.count("LDG.E.128"),
        "narrow_loads": made.sass.count("LDG.E.U16"),
        "warps": warps,
        "tile_bytes": TILE * launch.step.logits.element_size(),
    }


def prepare_step(
    dtype: torch.dtype,
    requests: int,
    *,
    vocabulary: int = 151_936,
    drafts: int = 4,
    filters: bool = False,
    **given: Any,
) -> Launch:
    """A step of the size that a GPU gets. The large tensor has a shape and no memory."""
    rows = requests * (drafts + 1)
    launch = kernel.prepare(
        torch.zeros(1, 1, dtype=dtype).expand(rows, vocabulary),
        torch.zeros(requests, drafts, dtype=torch.int64),
        torch.zeros(requests, dtype=torch.int64),
        SamplingBatch.of([1.0] * requests, [0.9 if filters else 1.0] * requests, [0] * requests, [0] * requests),
        torch.zeros(requests, dtype=torch.int64),
        **given,
    )
    return replace(launch, step=launch.step._replace(row_stride=vocabulary))


def variants() -> dict[str, Launch]:
    """What is compiled: "plain" reads logits as they are."""
    start = torch.zeros(64, dtype=torch.int64)
    biased = LogitAdjustments.of(151_936, bias=[{1: 1.0}] * 64)
    masked = LogitAdjustments(bitmask=torch.zeros(320, 4748, dtype=torch.int32))
    penalised = LogitAdjustments.of(151_936, repetition=[1.1] * 64)
    half = torch.bfloat16
    return {
        "plain, one request": prepare_step(half, 1, row_start=start[:1]),
        "plain, 8 requests": prepare_step(half, 8),
        "plain, 64 requests": prepare_step(half, 64, row_start=start),
        "plain, 64 requests, float16": prepare_step(torch.float16, 64, row_start=start, vocabulary=128_256),
        "plain, filters": prepare_step(half, 64, row_start=start, filters=True),
        "float32, filters": prepare_step(torch.float32, 64, row_start=start, filters=True),
        "bias": prepare_step(half, 64, row_start=start, adjustments=biased),
        "mask": prepare_step(half, 64, row_start=start, adjustments=masked),
        "penalties, filters": prepare_step(half, 64, row_start=start, adjustments=penalised, filters=True),
    }


def main() -> None:
    """Both launches of every variant for one generation, and a plain scan for the others."""
    figures = {}
    launches = variants()
    for name, launch in launches.items():
        figures[f"{name}: scan sm_90"] = compile_call(kernel.scan_call(launch), launch, 90)
        if "filters" in name:
            figures[f"{name}: second launch sm_90"] = compile_call(kernel.filter_call(launch), launch, 90)
    for capability in (80, 100):
        launch = launches["plain, 64 requests"]
        figures[f"plain, 64 requests: scan sm_{capability}"] = compile_call(
            kernel.scan_call(launch), launch, capability
        )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
