from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

def ranges_with(data: Array, starts: Array, sizes: Array, text: bytes, any_case: bool = ...) -> Array: ...
