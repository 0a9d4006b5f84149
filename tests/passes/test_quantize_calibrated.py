"""Pass quantize with calibrators: they see what products are given, and choose by that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stack
from stack.errors import UsageError
from stack.ir.builder import Builder, constant, param
from stack.ir.types import TensorType, dtype_named
from stack.passes.quantize import AGAIN
from stack.rewrite.pipeline import Pipeline

Array = np.ndarray
WIDTH, CALLS = 64, 96


def inputs(calls: int, seed: int = 0) -> Array:
    """Calls of 4 rows whose channels have 8 directions in common; some are large."""
    rng = np.random.default_rng(seed)
    mixed = np.random.default_rng(7).standard_normal((8, WIDTH))
    x = rng.standard_normal((calls, 4, 8)) @ mixed + rng.standard_normal((calls, 4, WIDTH)) / 3
    x[..., ::16] *= 20
    return x.astype(np.float32)


def layers(dtype: str = "f32") -> stack.Func:
    """Two products with an activation between."""
    rng, b = np.random.default_rng(1), Builder()
    x = param("x", TensorType(dtype_named(dtype), (4, WIDTH)))
    weights = [constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)) for _ in range(2)]
    for name, weight in zip(("first", "second"), weights, strict=True):
        b.names[weight] = name
    held = x if dtype == "f32" else b.cast(x, type=TensorType(dtype_named("f32"), x.shape))
    middle = b.tanh(b.dot(held, weights[0], rule="m k, k n -> m n"))
    return b.func("f", [x], [b.dot(middle, weights[1], rule="m k, k n -> m n")])


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "calls.npz"
    np.savez(path, x=inputs(CALLS))
    return path


def quantized(scheme: str, sample: Path, calibrate: str) -> tuple[stack.Func, list[str]]:
    how = f", calibrate={calibrate}" if calibrate else ""
    text = f"quantize{{scheme={scheme}, group=32, sample={sample}{how}}}"
    result = Pipeline(text).run(layers(), verbose=True)
    (record,) = result.records
    assert not record.misses, record.misses
    return result.func, [str(note) for note in record.notes]


def off(func: stack.Func) -> float:
    """On calls that were not in the sample."""
    pairs = [(func.interpret(x), layers().interpret(x)) for x in inputs(8, seed=5)]
    found, exact = (np.stack(side) for side in zip(*pairs, strict=True))
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("scheme", "calibrate", "share"),
    [
        ("w4a16", "gptq", 0.8),
        ("w4a16", "awq", 0.8),
        ("w4a16", "awq+gptq", 0.7),
        ("w4a16_awq", "awq", 0.8),
        ("w4a16_gptq", "gptq", 0.8),
        ("nf4", "gptq", 0.8),
        ("w8a8_dynamic", "smoothquant", 0.6),
        ("w8a8_dynamic", "hadamard", 0.8),
        ("w8a8_dynamic", "hadamard+gptq", 0.8),
    ],
)
def test_calibrated_is_nearer(scheme: str, calibrate: str, share: float, sample: Path) -> None:
    func, _ = quantized(scheme, sample, calibrate)
    assert stack.parse(str(func)) is func
    plain, _ = quantized(scheme, sample, "")
    assert off(func) < share * off(plain), (off(func), off(plain))


def test_a_scale_of_x_comes_from_the_sample(sample: Path) -> None:
    func, _ = quantized("w8a8_static", sample, "smoothquant+minmax")
    plain, _ = quantized("w8a8_static", sample, "minmax")
    assert off(func) < 0.9 * off(plain)
    assert off(plain) < 0.3


def test_errors_are_told_layer_by_layer(sample: Path) -> None:
    func, notes = quantized("w4a16", sample, "gptq")
    assert "first.packed" in str(func)
    told = [n for n in notes if "after all before it" in n]
    assert [n.partition(":")[0] for n in told] == ["first", "second"]
    alone = [float(n.rpartition(" ")[2].rstrip("%")) for n in notes if "products off by" in n]
    drift = [float(n.split("by ")[1].split("%")[0]) for n in told]
    assert drift[0] == pytest.approx(alone[0], rel=0.1)  # nothing is before it
    assert drift[1] > alone[1]
    pairs = [(func.interpret(x), layers().interpret(x)) for x in inputs(CALLS)[:AGAIN]]
    found, exact = (np.stack(side) for side in zip(*pairs, strict=True))
    measured = 100 * np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert drift[1] == pytest.approx(measured, abs=0.02)


def test_without_a_file_arguments_are_normal_numbers() -> None:
    (record,) = Pipeline("quantize{group=32, calibrate=awq}").run(layers()).records
    assert sum("after all before it" in str(n) for n in record.notes) == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("scheme=q8_0, calibrate=gptq", "q8_0 rounds whole blocks; gptq needs columns"),
        ("group=32, calibrate=minmax", "w4a16 has no scale of x; minmax is for w8a8_static"),
        ("scheme=w8a8_static", "'x_scale' needs a sample of x; calibrate=minmax computes it"),
        ("group=48, calibrate=gptq", "groups of 48 do not divide rows of 64 weights"),
    ],
)
def test_what_a_scheme_does_not_take_says_why(options: str, why: str) -> None:
    result = Pipeline(f"quantize{{{options}}}").run(layers(), verbose=True)
    assert result.func is layers()
    assert any(why in miss.reason for miss in result.records[0].misses), result.records[0].misses


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("calibrate=gpt", "no calibrator 'qgemm.gpt'; did you mean 'qgemm.gptq'"),
        ("calibrate=gptq+awq", "gptq.awq: the packing calibrator must be last"),
        ("calibrate=awq, sample=nowhere.npz", "there is no sample 'nowhere.npz'"),
    ],
)
def test_what_is_asked_wrongly_is_refused(options: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Pipeline(f"quantize{{group=32, {options}}}").run(layers())


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"y": inputs(2)}, "has no 'x', only y"),
        ({"x": inputs(2)[..., :8]}, r"'x' of shape \[2, 4, 8\], not of calls by \[4, 64\]"),
    ],
)
def test_a_sample_of_other_arguments_is_refused(
    arrays: dict[str, Array], told: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "calls.npz", **arrays)
    with pytest.raises(UsageError, match=told):
        Pipeline(f"quantize{{calibrate=awq, sample={tmp_path / 'calls.npz'}}}").run(layers())


def test_integers_are_not_drawn() -> None:
    with pytest.raises(UsageError, match=r"no random values for 'x' .*: give sample=FILE"):
        Pipeline("quantize{calibrate=awq}").run(layers("i32"))
