"""Compares the memory layouts of numpy arrays in Triton's stub and in Python."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

from slipstream_engine.errors import CheckpointError

_PROBE = (1, -2, 2**30)


def check_numpy() -> None:
    """Raise `CheckpointError` if Triton's stub and Python use different memory layouts of numpy arrays.

    The stub reads and creates arrays with the memory layout of the numpy that it was built for. With another major
    version of numpy no error is raised: inputs have wrong numbers, and outputs are empty. The probe is passed to the
    stub by DLPack, which does not depend on numpy's layout, and is returned as an array that the stub made.
    """
    given = pb_utils.Tensor("probe", np.array(_PROBE, dtype=np.int32))
    received = pb_utils.Tensor.from_dlpack("probe", given).as_numpy()
    if received.dtype != np.int32 or received.tolist() != list(_PROBE):
        raise CheckpointError(
            f"this Triton's Python stub does not work with numpy {np.__version__}: it turns {list(_PROBE)} into "
            f"{received!r}; put numpy 1.26 first in the model's environment, or use a Triton that knows numpy 2"
        )
