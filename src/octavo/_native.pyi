"""Types of the native module. Each room adds its functions; what is not listed yet is Any."""

from typing import Any

import numpy as np
import numpy.typing as npt

def supported_paths() -> list[str]: ...
def dequantize(
    data: npt.NDArray[np.uint8],
    type: str,
    out: npt.NDArray[np.float32] | npt.NDArray[np.uint16],
    num_threads: int = 1,
    path: str = "",
) -> None: ...
def __getattr__(name: str) -> Any: ...
