import numpy as np
from numpy.typing import NDArray

def row_sum(
    data: bytes,
    values: NDArray[np.uint32],
    in_word: bytes,
    table: NDArray[np.float32],
    seen: NDArray[np.uint32],
    stamp: int,
    total: NDArray[np.float32],
    /,
) -> int: ...
