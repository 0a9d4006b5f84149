"""rounding: excess precision between the ops of a kernel, or none; the same on all backends."""

from __future__ import annotations

import numpy as np
import pytest
from rounding_cases import chain, in_f32, numbers

import stack.plugins as plugins
from stack.ir import Builder, Func, Node, param, parse, tensor, verify
from stack.ir.data import round_bf16
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
    from stack.ir.data import decode, encode

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


# ---- widening


def widening(results: str, to: str = "f32") -> Func:
    """A sum of 16-bit floats that is converted; `results`: what leaves the kernel, "c" and "a"."""
    types = ", ".join({"a": "bf16", "c": to}[r] + "[6, 40]" for r in results)
    return parse(
        f"func @main(%x: bf16[6, 40], %y: bf16[6, 40]) -> ({types}) at tensor {{\n"
        "  %a = add(%x, %y) : bf16[6, 40]\n"
        f"  %c = cast(%a) : {to}[6, 40]\n"
        f"  return {', '.join(f'%{r}' for r in results)}\n"
        "}\n"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_widening_keeps_what_registers_hold(backend: str) -> None:
    x, y = numbers("bf16", np.random.default_rng(0))
    found = last_stage(widening("c"), backend, False).interpret(x, y)
    np.testing.assert_array_equal(found, x + y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_widening_of_a_stored_value_is_of_the_stored_value(backend: str) -> None:
    x, y = numbers("bf16", np.random.default_rng(0))
    stored, found = last_stage(widening("ac"), backend, False).interpret(x, y)
    np.testing.assert_array_equal(stored, round_bf16(x + y))
    np.testing.assert_array_equal(found, stored)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_conversions_round_first(backend: str) -> None:
    x = np.full((6, 40), 2.0, np.float32)
    y = np.full((6, 40), 0.9961, np.float32)  # bf16: the sum is rounded to 3
    found = last_stage(widening("c", "i32"), backend, False).interpret(x, round_bf16(y))
    np.testing.assert_array_equal(found, 3)


SIZE, DEPTH = 64, 32
SCORES = f"""  %s = dot(%q, %k) {{rule="m d, n d -> m n"}} : bf16[{SIZE}, {SIZE}]
  %a = add(%s, %b) : bf16[{SIZE}, {SIZE}]
  %c = cast(%a) : f32[{SIZE}, {SIZE}]
"""
ROWS = f"f32[{SIZE}]"
INPUTS = f"%q: bf16[{SIZE}, {DEPTH}], %k: bf16[{SIZE}, {DEPTH}], %b: bf16[{SIZE}, {SIZE}]"
FORWARD = f"""func @forward({INPUTS}) -> ({ROWS}, {ROWS}) at tensor {{
{SCORES}  %m = reduce(%c) {{axes=[1], kind="max"}} : {ROWS}
  %mm = broadcast(%m) {{axes=[0]}} : f32[{SIZE}, {SIZE}]
  %x = sub(%c, %mm) : f32[{SIZE}, {SIZE}]
  %e = exp(%x) : f32[{SIZE}, {SIZE}]
  %l = reduce(%e) {{axes=[1], kind="sum"}} : {ROWS}
  return %m, %l
}}
"""
BACKWARD = f"""func @backward({INPUTS}, %m: {ROWS}, %l: {ROWS}, %g: bf16[{SIZE}, {DEPTH}])
  -> (bf16[{SIZE}, {SIZE}], bf16[{SIZE}, {DEPTH}]) at tensor {{
{SCORES}  %mm = broadcast(%m) {{axes=[0]}} : f32[{SIZE}, {SIZE}]
  %x = sub(%c, %mm) : f32[{SIZE}, {SIZE}]
  %e = exp(%x) : f32[{SIZE}, {SIZE}]
  %ll = broadcast(%l) {{axes=[0]}} : f32[{SIZE}, {SIZE}]
  %d = div(%e, %ll) : f32[{SIZE}, {SIZE}]
  %p = cast(%d) : bf16[{SIZE}, {SIZE}]
  %o = dot(%p, %g) {{rule="m n, m d -> n d"}} : bf16[{SIZE}, {DEPTH}]
  return %p, %o
}}
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputed_scores_agree_with_their_statistics(backend: str) -> None:
    """A gradient computes softmax again from scores and saved statistics: a stream computed these
    from scores that are not rounded. Scores have a deviation of 11, so a rounding is a factor.
    """
    rng = np.random.default_rng(0)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return round_bf16((rng.normal(size=shape) * scale).astype(np.float32))

    q, k, b = draw(SIZE, DEPTH, scale=11 / DEPTH**0.5), draw(SIZE, DEPTH), draw(SIZE, SIZE)
    gradient = draw(SIZE, DEPTH)
    scores = q.astype(np.float64) @ k.T.astype(np.float64) + b
    powers = np.exp(scores - scores.max(1, keepdims=True))
    want = (powers / powers.sum(1, keepdims=True)).T @ gradient.astype(np.float64)

    def errors(forward: Func, backward: Func) -> tuple[float, float]:
        m, l = forward.interpret(q, k, b)
        _, made = backward.interpret(q, k, b, m, l, gradient)
        off = np.asarray(made, np.float64) - want
        return float(np.abs(off).max()), float(np.linalg.norm(off))

    parts = parse(FORWARD), parse(BACKWARD)
    eager = errors(*parts)
    own = errors(*(last_stage(part, backend, False) for part in parts))
    assert all(mine <= 2 * theirs for mine, theirs in zip(own, eager, strict=True)), (own, eager)
