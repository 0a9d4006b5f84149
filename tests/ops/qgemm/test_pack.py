"""Packed weights approximate the weights that they were computed from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.errors import RuleError
from stack.hosted import declared, find
from stack.ops.qgemm import fp8_block, pack, w4a16

# the largest difference, as a share of the largest weight of its group (and the group)
BOUNDS = {
    "qgemm.w4a16": (1 / 14, 32),
    "qgemm.w4a16_awq": (1 / 14, 32),
    "qgemm.w4a16_gptq": (1 / 7, 32),
    "qgemm.nf4": (0.16, 64),
    "qgemm.q8_0": (1 / 200, 32),
    "qgemm.mx": (1 / 3, 32),
    "qgemm.nvfp4": (0.25, 16),
    "qgemm.w8a8_dynamic": (1 / 200, 256),
}


def weights() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((16, 256)) * rng.uniform(0.1, 10, (16, 1))).astype(np.float32)


@pytest.mark.parametrize("name", BOUNDS)
def test_near_what_they_are_made_of(name: str) -> None:
    op, (bound, group) = find(name), BOUNDS[name]
    weight = weights()
    found = op(np.eye(256, dtype=np.float32), *op.packs(weight, group)).T
    top = np.abs(weight.reshape(16, -1, group)).max(-1, keepdims=True)
    assert (np.abs(found - weight).reshape(16, -1, group) <= bound * top).all()


def test_every_operator_that_packs_is_looked_at() -> None:
    packing = {n for n in declared() if find(n).packs is not None and n.startswith("qgemm.")}
    assert packing == {*BOUNDS, "qgemm.sparse24", "qgemm.w8a8_static"}


def test_the_scale_of_x_has_to_be_calibrated() -> None:
    codes, x_scale, scales = pack.w8a8_static(weights(), x_scale=0.25)
    np.testing.assert_array_equal(codes, pack.w8a8(weights())[0])
    assert x_scale == 0.25 and scales.shape == (16,)
    with pytest.raises(ValueError, match="calibrate=minmax"):
        pack.w8a8_static(weights())


def test_two_of_four_are_kept() -> None:
    weight = weights()
    values, places = pack.sparse24(weight)
    found = find("qgemm.sparse24")(np.eye(256, dtype=np.float32), values, places).T
    held, kept = weight.reshape(16, -1, 4), found.reshape(16, -1, 4)
    assert ((kept != 0).sum(-1) == 2).all()
    least = np.where(kept != 0, np.abs(held), np.inf).min(-1)
    assert (np.abs(np.where(kept == 0, held, 0)).max(-1) <= least).all()
    np.testing.assert_array_equal(found[found != 0], weight[found != 0])


def test_squares_of_8_bit_floats() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((5, 300)), rng.standard_normal((200, 300))
    operands = zip(pack.fp8_block(x), pack.fp8_block(weight, rows=128), strict=True)
    (x8, w8), (x_scale, w_scale) = operands
    assert x_scale.shape == (5, 3) and w_scale.shape == (2, 3)
    found = fp8_block(x8, w8, x_scale, w_scale)
    # 3 bits of mantissa: each factor is off by 1 / 16 at most
    np.testing.assert_array_less(
        np.abs(found - x @ weight.T), (1 / 7) * (np.abs(x) @ np.abs(weight.T))
    )


@pytest.mark.parametrize("name", ["w4a16", "nf4", "w4a16_awq", "w4a16_gptq"])
def test_a_group_that_does_not_divide_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="groups of 96 do not divide rows of 256 weights"):
        getattr(pack, name)(weights(), 96)


def zeros(*shapes: Any) -> list[np.ndarray]:
    """f32 for a shape, or a shape and an element type."""
    pairs = [s if str in map(type, s) else (s, "float32") for s in shapes]
    return [np.zeros(shape, kind) for shape, kind in pairs]


@pytest.mark.parametrize(
    ("name", "arrays", "told"),
    [
        ("w4a16", zeros((2, 96), ((4, 48), "u1"), (4, 5)), "'scales' has 5 groups.* 96 weights"),
        ("w4a16", zeros((2, 96), ((4, 40), "u1"), (4, 3)), "'packed' has 80 weights .* has 96"),
        ("w4a16", zeros((2, 96), ((5, 48), "u1"), (4, 3)), "axis 'n'.*'scales'"),
        ("nf4", zeros((2, 64), ((4, 32), "u1"), (4, 3)), "'absmax' has 3 groups"),
        ("w4a16_awq", zeros((2, 8), ((8, 3), "i4"), ((2, 3), "i4"), (2, 16)), "'qweight' .* 24"),
        (
            "w4a16_gptq",
            zeros((2, 16), ((3, 8), "i4"), ((2, 1), "i4"), (2, 8), ((16,), "i4")),
            "'qweight' has 24 weights",
        ),
        (
            "fp8_block",
            zeros(((2, 256), "u1"), ((256, 256), "u1"), (2, 2), (3, 2)),
            "'weight_scale' has a size of 3, not 2: a scale for each 128 of 256",
        ),
        (
            "fp8_block",
            zeros(((2, 256), "u1"), ((256, 256), "u1"), (2, 3), (2, 3)),
            "'x_scale' has a size of 3, not 2",
        ),
        ("fp8", zeros(((2, 8), "u1"), ((4, 8), "u1"), (2,), (3,)), "axis 'n'.*'weight_scale'"),
        ("w8a8", zeros(((2, 8), "i1"), ((4, 8), "i1"), (3,), (4,)), "'x_scale'"),
        ("mx", zeros((2, 64), ((4, 32), "u1"), ((4, 3), "u1")), "'scales' has 96 weights"),
        ("nvfp4", zeros((2, 32), ((4, 16), "u1"), ((4, 1), "u1"), ()), "'scales' has 16 weights"),
        ("sparse24", zeros((2, 8), (4, 4), ((4, 3), "u1")), "'places' has 12 weights"),
        ("q4_k", zeros((2, 256), ((4, 100), "u1")), "'blocks' has 100 bytes .* multiple of 144"),
        ("q6_k", zeros((2, 256), ((4, 420), "u1")), "'blocks' has 512 weights"),
    ],
)
def test_storage_that_does_not_fit_is_refused_by_name(
    name: str, arrays: list[np.ndarray], told: str
) -> None:
    """In NumPy, in torch before a kernel is asked, and while our compiler captures."""
    torch = pytest.importorskip("torch")
    op = find(f"qgemm.{name}")
    with pytest.raises(RuleError, match=told):
        op(*arrays)
    tensors = [torch.from_numpy(a) for a in arrays]
    with pytest.raises(RuleError, match=told):
        op(*tensors)
    with pytest.raises(Exception, match=told):
        stack.compile(lambda *ts: op(*ts), *tensors)


def test_a_format_that_there_is_not_is_refused() -> None:
    arrays = zeros((2, 32), ((4, 32), "u1"), ((4, 1), "u1"))
    with pytest.raises(
        RuleError, match="'format' must be one of e4m3, e5m2, e3m2, e2m3, e2m1, not 'e8m0'"
    ):
        find("qgemm.mx")(*arrays, format="e8m0")


def test_a_sum_that_may_leave_32_bits_is_refused() -> None:
    long = 1 << 18
    with pytest.raises(RuleError, match="'x' has sums of 262144 products"):
        find("qgemm.w8a8")(*zeros(((1, long), "i1"), ((1, long), "i1"), (1,), (1,)))


def test_code_in_c_computes_the_same() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((37, 256)).astype(np.float32)
    x = rng.standard_normal((3, 5, 256)).astype(np.float32)
    packed = pack.w4a16(weight, 64)
    kernel = next(k for k in w4a16.kernels if k.device == "cpu")
    np.testing.assert_allclose(kernel(x, *packed), w4a16(x, *packed), rtol=1e-4, atol=1e-4)
