"""Python runs this module at the start of each process of vLLM with the V2 model runner.

vLLM for CPUs uses Triton only if it has a backend called `cpu`, which no wheel of Triton has. In Triton's interpreter
(`TRITON_INTERPRET=1`) no backend compiles anything, so an entry in Triton's table is enough.
"""

from types import SimpleNamespace

import triton.backends

triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
