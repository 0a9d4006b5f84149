"""The address of an array, read where NumPy keeps it."""

from __future__ import annotations

import numpy as np
import pytest

from stack.backends.mlir.host import address


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(()),
        np.zeros(0),
        np.zeros((3, 4), np.uint16)[1:],
        np.frombuffer(b"0123456789abcdef", np.float32)[2:],
        np.ones((4, 4))[:, 2:],
        np.array([True]),
        np.zeros(2, np.complex128).view(np.float64),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_addresses_are_those_that_numpy_says(array: np.ndarray) -> None:
    assert address(array) == array.__array_interface__["data"][0] == array.ctypes.data
