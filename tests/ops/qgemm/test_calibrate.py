"""Calibrators: what they keep exactly, and what they gain on inputs with a few large channels."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ops.qgemm import pack, w4a16, w8a8_dynamic, w8a8_static
from stack.ops.qgemm.calibrate import awq, gptq, hadamard, smoothquant
from stack.ops.qgemm.calibrate.minmax import MinMax

Array = np.ndarray
GROUP = 32


def sample(seed: int = 0) -> tuple[Array, Array]:
    """Inputs whose channels differ, some a hundredfold, and weights."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.standard_normal(128))
    size[rng.choice(128, 4, replace=False)] *= 50
    mixed = rng.standard_normal((128, 128)) / 12 + np.eye(128)
    return rng.standard_normal((512, 128)) @ mixed * size, rng.standard_normal((64, 128))


def rounded(weight: Array) -> Array:
    """As `w4a16` has them."""
    return w4a16(np.eye(weight.shape[1]), *pack.w4a16(weight, GROUP)).T


def off(found: Array, exact: Array) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def test_min_max_sees_the_largest() -> None:
    seen = MinMax()
    for part in ([-1.0, 2.0], [0.5, -12.7]):
        seen.see(np.array(part))
    assert seen.symmetric() == pytest.approx(0.1)
    scale, zero = seen.affine()
    assert scale == pytest.approx(14.7 / 255) and zero == round(12.7 / scale)


def test_outliers_that_are_cut_off_leave_a_smaller_step() -> None:
    x, weight = sample()
    x = np.random.default_rng(0).standard_normal(x.shape)
    x[0, 0] = 1000
    whole, most = MinMax(), MinMax(share=0.9999)
    for seen in (whole, most):
        seen.see(x)
    operands = pack.w8a8(weight)
    found = [
        off(
            w8a8_static(x, operands[0], np.float64(s.symmetric()), operands[1])[1:],
            (x @ weight.T)[1:],
        )
        for s in (whole, most)
    ]
    assert found[1] < found[0] / 10


def test_smoothing_keeps_the_product_and_helps_integers() -> None:
    x, weight = sample()
    smooth_x, smooth_weight = smoothquant.smooth(x, weight)
    exact = x @ weight.T
    np.testing.assert_allclose(smooth_x @ smooth_weight.T, exact, rtol=1e-9, atol=1e-9)
    plain = off(w8a8_dynamic(x, *pack.w8a8(weight)), exact)
    assert off(w8a8_dynamic(smooth_x, *pack.w8a8(smooth_weight)), exact) < plain / 2


def test_alpha_says_who_has_the_outliers() -> None:
    x, weight = sample()
    smooth_x, _ = smoothquant.smooth(x, weight, alpha=1.0)
    np.testing.assert_allclose(np.abs(smooth_x).max(0), 1)
    _, smooth_weight = smoothquant.smooth(x, weight, alpha=0.0)
    np.testing.assert_allclose(np.abs(smooth_weight).max(0), 1)


def test_awq_finds_scales_that_are_nearer() -> None:
    x, weight = sample()
    scale, error = awq.search(x, weight, lambda x, weight: x @ rounded(weight).T)
    exact = x @ weight.T
    made = (x / scale) @ rounded(weight * scale).T
    assert float(np.mean((made - exact) ** 2)) == pytest.approx(error)
    assert off(made, exact) < 0.8 * off(x @ rounded(weight).T, exact)
    big = np.abs(x).mean(0) > 10
    assert scale[big].min() > scale[~big].max()


def test_gptq_is_nearer_than_rounding() -> None:
    """Inputs are correlated: 16 directions explain most of 128 channels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 16)) @ rng.standard_normal((16, 128))
    x += rng.standard_normal((512, 128)) / 4
    weight = rng.standard_normal((64, 128))
    exact = x @ weight.T
    found = w4a16(x, *gptq.quantize(x, weight, pack.w4a16, GROUP))
    assert off(found, exact) < 0.6 * off(x @ rounded(weight).T, exact)
    with pytest.raises(ValueError, match="groups of 48 do not divide"):
        gptq.quantize(x, weight, pack.w4a16, 48)


def test_gptq_of_inputs_that_have_nothing_in_common_is_rounding() -> None:
    """With a diagonal H no column can make up for another."""
    _, weight = sample()
    packed, scales = gptq.quantize(np.eye(128), weight, pack.w4a16, GROUP, damp=0)
    plain = pack.w4a16(weight, GROUP)
    np.testing.assert_array_equal(packed, plain[0])
    np.testing.assert_array_equal(scales, plain[1])


@pytest.mark.parametrize("k", [64, 96])
def test_rotation_is_orthogonal(k: int) -> None:
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], k)
    x, weight = rng.standard_normal((5, k)), rng.standard_normal((7, k))
    turned = hadamard.rotate(x, signs) @ hadamard.rotate(weight, signs).T
    np.testing.assert_allclose(turned, x @ weight.T, atol=1e-12)
    one = np.eye(k & -k)
    np.testing.assert_allclose(np.abs(hadamard.rotate(one)), 1 / np.sqrt(len(one)))


def test_rotation_leaves_no_outliers() -> None:
    x, weight = sample()
    outlier, rotated = (np.abs(a).max() / np.sqrt(np.mean(a**2)) for a in (x, hadamard.rotate(x)))
    assert rotated < outlier / 2
    exact = x @ weight.T
    plain = off(w8a8_dynamic(x, *pack.w8a8(weight)), exact)
    operands = pack.w8a8(hadamard.rotate(weight))
    assert off(w8a8_dynamic(hadamard.rotate(x), *operands), exact) < plain / 1.5
