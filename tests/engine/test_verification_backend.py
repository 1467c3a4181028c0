"""An engine finds out while it loads whether the kernel runs, and decodes without it where it does not."""

from __future__ import annotations

import torch
from slipstream_engine.step.verification_backend import auto_if_it_works, run_kernel, usable_backend


def test_engine_on_a_cpu_takes_the_reference():
    assert usable_backend(torch.device("cpu"), torch.float32, 100) == "reference"


def test_kernel_that_runs_is_taken():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # there in the interpreter
    assert auto_if_it_works(lambda: run_kernel(device, torch.bfloat16, 100)) == "auto"


def test_kernel_that_cannot_be_compiled_costs_a_warning_and_no_request(caplog):
    def no_compiler():
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    assert auto_if_it_works(no_compiler) == "reference"
    assert "RuntimeError: Failed to find C compiler" in caplog.text
