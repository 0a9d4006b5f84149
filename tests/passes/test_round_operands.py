"""round_operands: operands of TF32 matmuls that kernels before the matmul round."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Builder, Func, param, parse, tensor
from stack.ops.qgemm.formats import round_mantissa
from stack.passes.round_operands import round_tf32
from stack.rewrite import Pipeline

TEXT = """func @f(%x: f32[M, 768], %w: f32[3072, 768]) -> (f32[M, 3072]) at tensor {
  %e = exp(%x) : f32[M, 768]
  %z = dot(%e, %w) {PRECISIONrule="m k, n k -> m n"} : f32[M, 3072]
  return %z
}
"""


def program(rows: int, precision: str = "tf32") -> Func:
    asked = f'precision="{precision}", ' if precision else ""
    return parse(TEXT.replace("M,", f"{rows},").replace("PRECISION", asked))


def rounded(func: Func) -> list[str]:
    """The ops whose results are rounded, in order of the operands of the last dot."""
    dot = next(n for n in func.nodes if n.op == "dot")
    assert dot.attrs["precision"] == "tf32_rounded"
    return [a.args[2].op if a.op == "select" else "" for a in dot.args]


def test_both_operands_of_a_large_matmul_are_rounded_before_it() -> None:
    before = program(8192)
    after = Pipeline("round_operands").run(before).func
    assert rounded(after) == ["exp", "param"]
    assert [n.op for n in after.nodes].count("select") == 2
    assert Pipeline("round_operands").run(after).func is after


@pytest.mark.parametrize(("rows", "precision"), [(8192, ""), (16, "tf32")])
def test_exact_and_small_matmuls_stay_as_they_are(rows: int, precision: str) -> None:
    func = program(rows, precision)
    assert Pipeline("round_operands").run(func).func is func


def test_an_operand_of_two_matmuls_is_rounded_once() -> None:
    x, w = param("x", tensor("f32", 8192, 768)), param("w", tensor("f32", 3072, 768))
    b = Builder()
    dots = [b.dot(b.exp(x), w, rule="m k, n k -> m n", precision="tf32")]
    dots.append(b.dot(b.sin(x), w, rule="m k, n k -> m n", precision="tf32"))
    after = Pipeline("round_operands").run(b.func("f", [x, w], dots)).func
    assert [n.op for n in after.nodes].count("select") == 3


def test_a_value_that_others_read_is_copied_and_keeps_its_bits() -> None:
    x, w = param("x", tensor("f32", 8192, 768)), param("w", tensor("f32", 3072, 768))
    b = Builder()
    e = b.exp(x)
    z = b.dot(e, w, rule="m k, n k -> m n", precision="tf32")
    after = Pipeline("round_operands").run(b.func("f", [x, w], [z, e])).func
    assert rounded(after) == ["exp", "param"]
    assert after.results[1].op == "exp"


def test_rounded_values_are_the_nearest_of_10_bits(rng: np.random.Generator) -> None:
    x = param("x", tensor("f32", 1 << 12))
    func = Builder().func("f", [x], [round_tf32(x)])
    values = rng.integers(0, 1 << 32, 1 << 12, dtype=np.uint32).view(np.float32)
    values[:4] = np.inf, -np.inf, 0, np.uint32(0x7FFFFFFF).view(np.float32)  # nan of a GPU
    values = np.where(np.abs(values) > 3e38, np.float32(1), values)
    values[3] = np.uint32(0x7FFFFFFF).view(np.float32)
    got = np.asarray(func.interpret(values))
    ties = values.view(np.uint32) & 0x1FFF == 0x1000
    np.testing.assert_array_equal(got[~ties], round_mantissa(values, 10)[~ties])
    finite = np.isfinite(values)
    error = np.abs(got[finite].astype(np.float64) - values[finite])
    normal = np.abs(values[finite]) > 2e-38
    assert np.all(error[normal] <= np.abs(values[finite])[normal] * 2.0**-11)


def test_a_kernel_multiplies_rounded_operands_as_they_are() -> None:
    steps = "round_operands,fuse,schedule,blocks"
    text = str(Pipeline(steps).run(program(8192)).func)
    assert 'precision="tf32_rounded"' in text
    assert 'precision="tf32_rounded"' not in str(Pipeline(steps).run(program(16)).func)
