"""Blocks of GGUF files against the `gguf` package, which nobody here wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quantized_cases import blocks

from stack.hosted import Op
from stack.ops.qgemm import pack, q4_k, q6_k, q8_0

gguf: Any = pytest.importorskip("gguf")

KINDS = [
    (q8_0, "Q8_0", 34, 32, (0,)),
    (q4_k, "Q4_K", 144, 256, (0, 2)),
    (q6_k, "Q6_K", 210, 256, (208,)),
]


@pytest.mark.parametrize(
    ("op", "name", "size", "count", "halves"), KINDS, ids=[k[1] for k in KINDS]
)
def test_every_weight_is_the_same(
    op: Op, name: str, size: int, count: int, halves: tuple[int, ...]
) -> None:
    """A product with the identity shows the weights: to the last bit, for random blocks."""
    held = blocks(16, 2, size, halves)(np.random.default_rng(0))
    kind = gguf.GGMLQuantizationType[name]
    expected = gguf.dequantize(held, kind)
    one = np.eye(2 * count, dtype=np.float32)
    np.testing.assert_array_equal(op(one, held).T, expected)
    np.testing.assert_array_equal(op.decomposition(np, one, held).T, expected)


def test_weights_are_packed_as_the_package_packs_them() -> None:
    weight = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    expected = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(pack.q8_0(weight)[0], expected)
