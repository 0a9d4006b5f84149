"""Products of blocks: which loops of a CPU become one `dot`, of which blocks of memory."""

from __future__ import annotations

import pytest
from nest_cases import around, fused, random_inputs, results, wrong

from stack.ir.node import Node
from stack.ir.traits import is_contraction
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.primitives import IllegalStep, parse_steps, run_steps
from stack.target import as_cpu, load

AVX512 = as_cpu(load("avx512"))
SPEC = """func @f(%x: X, %w: W) -> (Y) at tensor {
  %f = fusion(%x, %w) {kind="gemm", name="product"} : Y {(%p0: X, %p1: W)
    %y = dot(%p0, %p1) {rule="RULE"} : Y
    return %y
  }
  return %f
}
"""
WINDOWS = """func @f(%x: f32[2, 9, 12, 4], %w: f32[3, 2, 4, 16]) -> (f32[2, 7, 5, 16]) at tensor {
  %f = fusion(%x, %w) {kind="gemm", name="product"} : f32[2, 7, 5, 16]
    {(%p0: f32[2, 9, 12, 4], %p1: f32[3, 2, 4, 16])
    %u = unfold(%p0) {axis=1, dilation=[1, 3], stride=[1, 2], window=[3, 2]}
      : f32[2, 7, 5, 3, 2, 4]
    %y = dot(%u, %p1) {rule="n y x a b c, a b c o -> n y x o"} : f32[2, 7, 5, 16]
    return %y
  }
  return %f
}
"""


def nest(rule: str, x: str, w: str, y: str) -> Node:
    text = SPEC.replace("RULE", rule)
    for letter, type_ in (("X", x), ("W", w), ("Y", y)):
        text = text.replace(f": {letter}", f": {type_}").replace(f"({letter})", f"({type_})")
    return plain_nest(fused(text), AVX512)


def product(kernel: Node, steps: str) -> Node:
    """The only `dot` of a kernel after steps; the kernel computes what it did."""
    made = run_steps(kernel, parse_steps(steps), AVX512)
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-3)
    (dot,) = (n for n in made.blocks[0].all_nodes if is_contraction(n))
    return dot


def text_of(dot: Node) -> str:
    """The rule of a product, and the shapes and types of its blocks."""
    blocks = " by ".join(f"{a.op} {a.type}" for a in dot.args)
    return f"{dot.attrs['rule']}: {blocks} to {dot.type}"


BLOCKS = {
    "rows": (
        ("m k, k n -> m n", "f32[4, 6]", "f32[6, 16]", "f32[4, 16]"),
        "vectorize j; microkernel i",
        "m k, k n -> m n: load f32<4x6> by load f32<6x16> to f32<4x16>",
    ),
    "transposed operands": (
        ("k m, n k -> m n", "f32[6, 4]", "f32[16, 6]", "f32[4, 16]"),
        "vectorize j; microkernel i",
        "k m, n k -> m n: load f32<6x4> by load f32<16x6> to f32<4x16>",
    ),
    "operands in the other order": (
        ("k n, k m -> m n", "f32[6, 16]", "f32[6, 4]", "f32[4, 16]"),
        "vectorize j; microkernel i",
        "k m, k n -> m n: load f32<6x4> by load f32<6x16> to f32<4x16>",
    ),
    "one row": (
        ("k, k n -> n", "f32[6]", "f32[6, 16]", "f32[16]"),
        "vectorize i; microkernel k",
        "k, k n -> n: load f32<6> by load f32<6x16> to f32<16>",
    ),
    "one column": (
        ("k m, k n -> m n", "f32[6, 4]", "f32[6, 1]", "f32[4, 1]"),
        "vectorize j; microkernel i",
        "k m, k n -> m n: load f32<6x4> by load f32<6x1> to f32<4x1>",
    ),
    "nothing to reduce": (
        ("m k, k n -> m n", "f32[4, 1]", "f32[1, 16]", "f32[4, 16]"),
        "vectorize j; microkernel i",
        "m k, k n -> m n: load f32<4x1> by load f32<1x16> to f32<4x16>",
    ),
    "a batch": (
        ("b m k, b k n -> b m n", "f32[3, 4, 6]", "f32[3, 6, 16]", "f32[3, 4, 16]"),
        "bind i cores; vectorize k; microkernel j",
        "m k, k n -> m n: load f32<4x6> by load f32<6x16> to f32<4x16>",
    ),
    "heads between rows and depth": (
        ("m h k, n h k -> h m n", "f32[4, 3, 6]", "f32[16, 3, 6]", "f32[3, 4, 16]"),
        "bind i cores; vectorize k; microkernel j",
        "m a1 k, n b1 k -> m n: load f32<4x1x6> by load f32<16x1x6> to f32<4x16>",
    ),
    "two reduction axes": (
        ("m k l, l k n -> m n", "f32[4, 3, 2]", "f32[2, 3, 16]", "f32[4, 16]"),
        "vectorize j; microkernel i",
        "m k k1, k1 k n -> m n: load f32<4x3x2> by load f32<2x3x16> to f32<4x16>",
    ),
    "a product for each lane": (
        ("m k n, k n -> m n", "f32[4, 6, 16]", "f32[6, 16]", "f32[4, 16]"),
        "vectorize j; microkernel i",
        "m k n, k n -> m n: load f32<4x6x16> by load f32<6x16> to f32<4x16>",
    ),
    "short numbers, converted": (
        ("m k, k n -> m n", "bf16[4, 6]", "bf16[6, 16]", "bf16[4, 16]"),
        "vectorize j; microkernel i",
        "m k, k n -> m n: cast f32<4x6> by cast f32<6x16> to f32<4x16>",
    ),
    "short numbers as they are": (
        ("m k, k n -> m n", "bf16[4, 6]", "bf16[6, 16]", "bf16[4, 16]"),
        "vectorize j; microkernel i vdpbf16ps",
        "m k, k n -> m n: load bf16<4x6> by load bf16<6x16> to f32<4x16>",
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    spec, steps, want = BLOCKS[name]
    assert text_of(product(nest(*spec), steps)) == want


def test_a_tile_of_rows_that_starts_early() -> None:
    kernel = nest("m k, k n -> m n", "f32[7, 6]", "f32[6, 16]", "f32[7, 16]")
    steps = "split i 4 tail=overlap; bind i.0 cores; vectorize j; microkernel i.1"
    left, _ = product(kernel, steps).args
    assert left.shape == (4, 6) and left.args[1].op == "min"


def test_windows() -> None:
    """Rows are windows of one axis; of the other one there is one window, of all its taps."""
    dot = product(plain_nest(fused(WINDOWS), AVX512), "bind i cores; bind j cores; vectorize l;"
                  " microkernel k")  # fmt: skip
    left, right = dot.args
    assert left.attrs == {"axis": 0, "window": (3, 2), "stride": (1, 2), "dilation": (1, 3)}
    assert left.args[0].shape == (3, 12, 4) and right.shape == (3, 2, 4, 16)
    assert dot.attrs["rule"] == "a0 m k k1 k2, k k1 k2 n -> m n"


def test_rows_one_by_one() -> None:
    """Each sum of a row is a `dot`: a loop need not be bound."""
    kernel = nest(*SQUARE)
    made = run_steps(kernel, parse_steps("vectorize j; unroll i; microkernel k"), AVX512)
    arrays = random_inputs(around(kernel))
    assert not wrong(made, arrays, results(around(kernel), arrays), 1e-3)
    assert sum(is_contraction(n) for n in made.blocks[0].all_nodes) == 4


SQUARE = ("m k, k n -> m n", "f32[4, 6]", "f32[6, 16]", "f32[4, 16]")
REFUSED = {
    "no vectors": (SQUARE, "microkernel i", "no loop over i only stores sums of products"),
    "more than the rows": (
        ("b m k, b k n -> b m n", "f32[3, 4, 6]", "f32[3, 6, 16]", "f32[3, 4, 16]"),
        "vectorize k; microkernel i",
        "no loop over i only stores sums of products",
    ),
    "no such axis": (SQUARE, "vectorize j; microkernel q", "there is no loop over 'q'"),
    "no such instruction": (
        SQUARE,
        "vectorize j; microkernel i vdpbf16ps",
        "avx512 has no vdpbf16ps for 4 x 16 x 6 products of f32 and f32",
    ),
    "an instruction that does not divide": (
        ("m k, k n -> m n", "bf16[4, 6]", "bf16[6, 12]", "bf16[4, 12]"),
        "vectorize j; microkernel i vdpbf16ps",
        "avx512 has no vdpbf16ps for 4 x 12 x 6 products of bf16 and bf16",
    ),
    "strided rows": (
        ("k m, k n -> m n", "bf16[6, 4]", "bf16[6, 16]", "bf16[4, 16]"),
        "vectorize j; microkernel i vdpbf16ps",
        "rows are not contiguous along the reduction axis",
    ),
    "a part of the reduction": (
        SQUARE,
        "vectorize j; split k 4; microkernel i",
        "no loop over i only stores sums of products",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_legal_is_refused(name: str) -> None:
    spec, steps, message = REFUSED[name]
    with pytest.raises(IllegalStep) as found:
        run_steps(nest(*spec), parse_steps(steps), AVX512)
    assert str(found.value.step).startswith("microkernel") and message in str(found.value)
