"""rounding: excess precision between the ops of a kernel, or none; the same on all backends."""

from __future__ import annotations

import numpy as np
import pytest
from rounding_cases import chain, in_f32, numbers

import stack.plugins as plugins
from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.passes.rounding import Rounding
from stack.rewrite.pipeline import Pipeline
from stack.run.compile import compile_func, lower
from stack.run.record import Run

BACKENDS = ("mlir", "triton", "cuda")
BEFORE = """func @main(%x: bf16[6, 40], %y: bf16[6, 40]) -> (bf16[6, 40]) at tensor {
  %a = add(%x, %y) : bf16[6, 40]
  %m = max(%a, %y) : bf16[6, 40]
  %t = ge(%m, %x) : bool[6, 40]
  %s = select(%t, %m, %x) : bf16[6, 40]
  %d = mul(%s, 0.5:bf16) : bf16[6, 40]
  return %d
}
"""
EXPECTED = """func @main(%x: bf16[6, 40], %y: bf16[6, 40]) -> (bf16[6, 40]) at tensor {
  %cast = cast(%x) : f32[6, 40]
  %cast_1 = cast(%y) : f32[6, 40]
  %add = add(%cast, %cast_1) : f32[6, 40]
  %a = cast(%add) : bf16[6, 40]
  %m = max(%a, %y) : bf16[6, 40]
  %t = ge(%m, %x) : bool[6, 40]
  %s = select(%t, %m, %x) : bf16[6, 40]
  %cast_2 = cast(%s) : f32[6, 40]
  %cast_3 = cast(0.5:bf16) : f32[]
  %mul = mul(%cast_2, %cast_3) : f32[6, 40]
  %d = cast(%mul) : bf16[6, 40]
  return %d
}
"""


def last_stage(func: Func, backend: str, rounds: bool) -> Func:
    """The last stage; the interpreter runs it, without a GPU too."""
    made = plugins.load("stack.backends", backend)
    return lower(func, made, Run("", "", backend), rounds=rounds)


def test_text() -> None:
    made = Pipeline([Rounding()]).run(parse(BEFORE), check=True).func
    verify(made)
    assert str(made) == str(parse(EXPECTED))
    assert made is Pipeline("rounding").run(parse(BEFORE)).func


def test_other_types_stay() -> None:
    func = parse(BEFORE.replace("bf16", "f32"))
    assert Pipeline([Rounding()]).run(func).func is func


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_policies(backend: str, dtype: str, rng: np.random.Generator) -> None:
    func, arrays = chain(dtype), numbers(dtype, rng)
    rounded = func.interpret(*arrays)  # the reference rounds after each op
    once = in_f32(func, arrays, dtype)
    assert not np.array_equal(rounded[0], once[0])
    for want, rounds in ((rounded, True), (once, False)):
        found = last_stage(func, backend, rounds).interpret(*arrays)
        np.testing.assert_array_equal(found[0], want[0])
        # sums are in f32, in any order
        scale = 2.0**-7 if dtype == "bf16" else 2.0**-10
        np.testing.assert_allclose(found[1], want[1], rtol=scale)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_mlir_runs_it(dtype: str, rng: np.random.Generator) -> None:
    from stack.ir.storage import decode, encode

    func, arrays = chain(dtype), numbers(dtype, rng)
    stored = [encode(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
    for excess, want in ((False, func.interpret(*arrays)), (True, in_f32(func, arrays, dtype))):
        executable = compile_func(func, "mlir", options={"excess_precision": excess})
        found = executable.run(stored)[0]
        np.testing.assert_array_equal(decode(found, func.results[0].dtype), want[0])


def test_eager_and_both_entries() -> None:
    torch = pytest.importorskip("torch")
    import stack

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x + y) * y - x) / (y * y + 1.0)

    for dtype in (torch.bfloat16, torch.float16):
        x, y = (torch.randn(64, 48).to(dtype) for _ in "xy")
        want = program(x, y)
        found = stack.compile(program, x, y, excess_precision=False)
        assert found.run.stages[2] == "rounded"
        torch.testing.assert_close(found(x, y), want, rtol=0, atol=0)
        torch._dynamo.reset()
        options = {"excess_precision": False}
        call = torch.compile(program, backend="stack", options=options, fullgraph=True)
        torch.testing.assert_close(call(x, y), want, rtol=0, atol=0)
        assert not torch.equal(stack.compile(program, x, y)(x, y), want)


def test_same_functions(rng: np.random.Generator) -> None:
    """A constant of the program is one of memory's: it is not read in f32."""

    def build(b: Builder, x: Node) -> Node:
        return b.mul(b.exp(x), b.const(np.float32(0.1).astype(np.float16)))

    b = Builder()
    x = param("x", tensor("f16", 6, 40))
    func = b.func("main", [x], [build(b, x)])
    arrays = numbers("f16", rng)[:1]
    found = last_stage(func, "mlir", True).interpret(*arrays)
    np.testing.assert_array_equal(found, func.interpret(*arrays))
