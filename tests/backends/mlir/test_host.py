"""Memory of programs on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

from stack.backends.mlir.host import LINE, Host


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (1000, 33)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "uint16"])
def test_arrays_start_at_a_line_of_the_cache(shape: tuple[int, ...], dtype: str) -> None:
    allocate = Host().allocator(shape, np.dtype(dtype), "a result")
    first, second = allocate(), allocate()
    assert (first.shape, first.dtype) == (shape, np.dtype(dtype))
    assert first.flags.c_contiguous and first.flags.writeable
    assert not first.size or first.ctypes.data % LINE == 0
    assert not np.may_share_memory(first, second)
