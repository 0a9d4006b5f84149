"""Element types, tensor types and their text."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from stack.ir import DTYPES, TensorType, TupleType, tensor
from stack.ir.dim import symbol
from stack.ir.types import BF16, F32, dtype_of, type_symbols


@pytest.mark.parametrize("name", DTYPES)
def test_element_types_are_single_objects(name: str) -> None:
    dtype = DTYPES[name]
    assert str(dtype) == repr(dtype) == name
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    width = np.dtype(dtype.numpy).itemsize
    assert width == (4 if dtype is BF16 else dtype.bytes)
    assert dtype.bits == 8 * dtype.bytes
    if dtype is not BF16:
        assert dtype_of(np.zeros(1, dtype.numpy)) is dtype


def test_dtype_of_what_is_outside() -> None:
    assert dtype_of(np.zeros(1, ml_dtypes.bfloat16)) is BF16
    with pytest.raises(TypeError, match="no element type for NumPy's str"):
        dtype_of(np.array("a"))
    with pytest.raises(TypeError, match="object"):
        dtype_of(np.array(None))


def test_text_and_sizes() -> None:
    b = symbol("b")
    assert str(tensor("f32", 8, 64)) == "f32[8, 64]"
    assert str(tensor("f32")) == "f32[]"
    assert str(tensor("bf16", b, 4 * b)) == "bf16[b, 4*b]"
    assert str(TensorType(F32, (1, 64), "tile")) == "f32<1x64>"
    assert str(TensorType(F32, (), "tile")) == "f32<>"
    assert str(TensorType(F32, (4,), "shared")) == "f32[4] in shared"
    assert str(TupleType((tensor("f32"), tensor("i64", 2)))) == "(f32[], i64[2])"
    assert tensor("bf16", 8, 64).bytes == 1024
    assert tensor("bool", 3).bytes == 3
    assert str(tensor("f64", b, 2).bytes) == "16*b"
    assert tensor("f32", 0, 7).size == 0
    assert tensor("f32").size == 1
    assert {s.name for s in type_symbols(TupleType((tensor("f32", b), tensor("f32"))))} == {"b"}


def test_sizes_become_plain_integers() -> None:
    made = tensor("f32", np.int64(8), True)
    assert made == tensor("f32", 8, 1)
    assert [type(d) for d in made.shape] == [int, int]
    assert hash(made) == hash(tensor("f32", 8, 1))
    assert tensor("f32", 2) != tensor("f64", 2)
    assert tensor("f32", 2) != TensorType(F32, (2,), "tile")


def test_sizes_that_are_none() -> None:
    with pytest.raises(ValueError, match="not negative"):
        tensor("f32", -1)
    with pytest.raises(TypeError):
        tensor("f32", 2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        TensorType(F32, (symbol("b"),), "tile")
    with pytest.raises(KeyError):
        tensor("float32", 2)
