"""Whether numpy arrays cross the border to Triton's stub as they are.

Triton's stub reads and makes arrays through the memory layout of the numpy that it was built for. With another
major version of numpy it raises nothing: numbers come in wrong, and outputs go out empty. So this is tried before a
model takes its first request.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_engine.errors import CheckpointError

_PROBE = (1, -2, 2**30)


def check_numpy(tensor_type: Any) -> None:
    """Raise `CheckpointError` where arrays get broken. `tensor_type` is `triton_python_backend_utils.Tensor`.

    The probe goes in by DLPack, which numpy's layout does not concern, and comes out as an array of the stub's making.
    """
    import torch  # late: it is imported for the engine anyway, in a process that is ready for it by now

    received = tensor_type.from_dlpack("probe", torch.tensor(_PROBE, dtype=torch.int32)).as_numpy()
    if received.dtype != np.int32 or received.tolist() != list(_PROBE):
        raise CheckpointError(
            f"this Triton's Python stub does not work with numpy {np.__version__}: it turns {list(_PROBE)} into "
            f"{received!r}; put numpy 1.26 first in the model's environment, or use a Triton that knows numpy 2"
        )
