"""Groups whose results have other axes than the loops: iterations store to their own elements."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Func, Node, parse
from stack.ir.builder import constant, make
from stack.ir.types import I32, TensorType
from stack.passes.steps.affine import AffineIndex, index_of, is_apart
from stack.rewrite import Pipeline

# a transposed convolution whose stride is its window: each element makes a block of 2 x 2
BLOCKS = """func @f(%x: f32[1, 9, 64, 40], %w: f32[40, 64, 2, 2], %b: f32[64]) \
-> (f32[1, 18, 128, 64]) at tensor {
  %y = fusion(%x, %w, %b) {kind="gemm", name="blocks"} : f32[1, 18, 128, 64] \
{(%p0: f32[1, 9, 64, 40], %p1: f32[40, 64, 2, 2], %p2: f32[64])
    %d = dot(%p0, %p1) {rule="n s0 s1 c, c o p0 p1 -> n s0 p0 s1 p1 o"} : f32[1, 9, 2, 64, 2, 64]
    %r = reshape(%d) : f32[1, 18, 128, 64]
    %c = broadcast(%p2) {axes=[3]} : f32[1, 18, 128, 64]
    %y = add(%r, %c) : f32[1, 18, 128, 64]
    return %y
  }
  return %y
}
"""
# the gradient of two weights side by side, which are one matrix
ROWS = """func @f(%p: f32[128, 128], %x: f32[64, 128], %g: f32[64, 2, 64]) \
-> (f32[128, 128]) at tensor {
  %y = fusion(%p, %x, %g) {kind="gemm", name="rows"} : f32[128, 128] \
{(%p0: f32[128, 128], %p1: f32[64, 128], %p2: f32[64, 2, 64])
    %d = dot(%p1, %p2) {rule="k n, k a b -> a b n"} : f32[2, 64, 128]
    %m = mul(%d, 0.1:f32) : f32[2, 64, 128]
    %r = reshape(%m) : f32[128, 128]
    %y = sub(%p0, %r) : f32[128, 128]
    return %y
  }
  return %y
}
"""
# partial sums of a projection that are stored whole and by heads
HEADS = """func @f(%x: f32[8, 1, 19, 512], %s: f32[19, 128]) \
-> (f32[1, 19, 512], f32[1, 19, 4, 128]) at tensor {
  %f = fusion(%x, %s) {kind="reduction", name="heads"} : (f32[1, 19, 512], f32[1, 19, 4, 128]) \
{(%p0: f32[8, 1, 19, 512], %p1: f32[19, 128])
    %r = reduce(%p0) {axes=[0], kind="sum"} : f32[1, 19, 512]
    %h = reshape(%r) : f32[1, 19, 4, 128]
    %c = broadcast(%p1) {axes=[1, 3]} : f32[1, 19, 4, 128]
    %y = mul(%h, %c) : f32[1, 19, 4, 128]
    return %r, %y
  }
  %r = item(%f) {index=0} : f32[1, 19, 512]
  %y = item(%f) {index=1} : f32[1, 19, 4, 128]
  return %r, %y
}
"""
# a norm of groups, of which there is one: the reduction has an axis that the result lacks
GROUPS = """func @f(%x: f32[1, 19, 1, 70], %y: f32[1, 19, 70], %g: f32[70]) \
-> (f32[1, 19, 70]) at tensor {
  %z = fusion(%x, %y, %g) {kind="reduction", name="groups"} : f32[1, 19, 70] \
{(%p0: f32[1, 19, 1, 70], %p1: f32[1, 19, 70], %p2: f32[70])
    %s = mul(%p1, %p1) : f32[1, 19, 70]
    %t = reshape(%s) : f32[1, 19, 1, 70]
    %r = reduce(%t) {axes=[3], kind="sum"} : f32[1, 19, 1]
    %u = reshape(%r) : f32[19]
    %b = broadcast(%u) {axes=[1]} : f32[1, 19, 1, 70]
    %m = mul(%p0, %b) : f32[1, 19, 1, 70]
    %n = reshape(%m) : f32[1, 19, 70]
    %w = broadcast(%p2) {axes=[2]} : f32[1, 19, 70]
    %z = mul(%w, %n) : f32[1, 19, 70]
    return %z
  }
  return %z
}
"""


def lowered(source: Func, passes: str) -> Func:
    made = Pipeline(passes).run(source).func
    kernels = [n for n in made.nodes if n.op not in ("item", "reshape", "const")]
    assert [n.op for n in kernels] == ["kernel"]
    return made


@pytest.mark.parametrize(
    ("text", "passes"),
    [(BLOCKS, "tile"), (ROWS, "tile"), (HEADS, "blocks"), (GROUPS, "tile"), (GROUPS, "blocks")],
    ids=["blocks", "rows", "heads", "groups on a CPU", "groups on a GPU"],
)
def test_is_one_kernel(text: str, passes: str, rng: np.random.Generator) -> None:
    source = parse(text)
    made = lowered(source, passes)
    arrays = [rng.standard_normal(tuple(map(int, p.shape))).astype("f4") for p in source.params]
    exact = parse(text.replace("f32", "f64")).interpret(*(a.astype("f8") for a in arrays))
    for got, want in zip(made.interpret(*arrays), exact, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def variable(name: str, extent: int) -> Node:
    return Node("var", (), {"name": name, "extent": extent}, TensorType(I32, ()))


def of(op: str, *args: Node | int) -> Node:
    return make(op, [a if isinstance(a, Node) else constant(a, I32) for a in args])


I, J = variable("i", 7), variable("j", 128)


@pytest.mark.parametrize(
    ("op", "by", "want"),
    [("div", 128, AffineIndex({I: 1})), ("rem", 128, AffineIndex({J: 1})),
     ("div", 64, None), ("rem", 100, None), ("div", 127, None)],
)  # fmt: skip
def test_digits_of_an_index(op: str, by: int, want: AffineIndex | None) -> None:
    node = of(op, of("add", of("mul", I, 128), J), by)
    assert index_of(node) == (want or AffineIndex({node: 1}))


def test_digits_of_what_may_be_negative_are_terms() -> None:
    node = of("div", of("sub", of("mul", I, 128), 128), 128)
    assert index_of(node) == AffineIndex({node: 1})


@pytest.mark.parametrize(
    ("step", "inner", "size", "want"),
    [
        (58, of("min", of("mul", J, 6), 57), 1, True),
        (58, of("min", of("mul", J, 6), 58), 1, False),
        (58, of("min", of("mul", J, 6), 57), 2, False),
        (1, of("mul", of("min", of("mul", J, 6), 58), 7), 1, True),  # 7 iterations fit between
        (1, of("mul", of("min", of("mul", J, 6), 58), 6), 1, False),
    ],
)
def test_iterations_are_apart(step: int, inner: Node, size: int, want: bool) -> None:
    index = of("add", of("mul", I, step), inner)
    assert is_apart(index, I, {J}, size) is want
