"""Products of one left operand in one kernel: what is joined, what is not, and its values."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import (
    JOINED,
    Build,
    Shape,
    assert_exact,
    assert_near,
    epilogue_of,
    exact,
    floats,
    gated,
    kept,
    several,
    thrice,
)
from kernel_cases import in_blocks
from rule_cases import func

from stack.ir import Builder, Func, Node, parse, verify
from stack.ir.types import BF16
from stack.passes.gpu_products.tile_choice import (
    Product,
    measured_tiles,
    predicted,
    ranked,
    unfused_seconds,
)
from stack.passes.policies.products import Products
from stack.passes.tiling.contraction import products_of
from stack.passes.tiling.frame import CannotTile
from stack.rewrite import Pipeline
from stack.rewrite.pipeline import Record
from stack.schedule import schedules_of
from stack.target import as_gpu

GPU = as_gpu(None)

PARAMS = "%x: f32[48, 32], %a: f32[64, 32], %b: f32[32, 64]"
GATED = """%g = dot(%x, %a) {rule="m k, n k -> m n"} : f32[48, 64]
%s = sigmoid(%g) : f32[48, 64]
%h = mul(%g, %s) : f32[48, 64]
%u = dot(%x, %b) {rule="m k, k n -> m n"} : f32[48, 64]
%z = mul(%h, %u) : f32[48, 64]"""
EXPECTED = """\
func @main(%x: f32[48, 32], %a: f32[64, 32], %b: f32[32, 64]) -> (f32[48, 64]) at tensor {
  %z = fusion(%x, %a, %b) {kind="gemm", name="dot_sigmoid_mul"} : f32[48, 64] \
{(%p0: f32[48, 32], %p1: f32[64, 32], %p2: f32[32, 64])
    %g = dot(%p0, %p1) {rule="m k, n k -> m n"} : f32[48, 64]
    %s = sigmoid(%g) : f32[48, 64]
    %h = mul(%g, %s) : f32[48, 64]
    %u = dot(%p0, %p2) {rule="m k, k n -> m n"} : f32[48, 64]
    %z = mul(%h, %u) : f32[48, 64]
    return %z
  }
  return %z
}
"""


def fused(source: Func, options: str = "{multi_gemm=true}") -> Record:
    return Pipeline(f"fuse{options}").run(source, check=True).records[0]


def kernels(record: Record) -> int:
    return sum(n.op in ("fusion", "dot") for n in record.after.nodes)


def test_before_and_expected() -> None:
    assert str(fused(func(PARAMS, GATED)).after) == EXPECTED
    assert kernels(fused(func(PARAMS, GATED), "")) == 2


@pytest.mark.parametrize(
    ("params", "rules"),
    [
        ("%x: f32[48, 32], %a: f32[64, 32], %b: f32[32, 64]",
         ("n k, m k -> m n", "m k, k n -> m n")),
        ("%x: f32[6, 8, 32], %a: f32[64, 32], %b: f32[32, 64]",
         ("r s k, n k -> r s n", "r s k, k n -> r s n")),
        ("%x: f32[32, 48], %a: f32[32, 64], %b: f32[32, 64]",
         ("k m, k n -> m n", "k m, k n -> m n")),
        ("%x: f32[3, 48, 32], %a: f32[3, 64, 32], %b: f32[3, 32, 64]",
         ("g m k, g n k -> g m n", "g m k, g k n -> g m n")),
    ],
    ids=["weights first", "batch", "left turned", "a weight for each"],
)  # fmt: skip
def test_layouts_of_either_side(params: str, rules: tuple[str, str]) -> None:
    shape = {"r": 6, "s": 8, "g": 3, "m": 48, "n": 64}
    out = ", ".join(str(shape[n]) for n in rules[0].split(" -> ")[1].split())
    first = "%a, %x" if rules[0].startswith("n k, m") else "%x, %a"
    lines = f"""%g = dot({first}) {{rule="{rules[0]}"}} : f32[{out}]
%u = dot(%x, %b) {{rule="{rules[1]}"}} : f32[{out}]
%z = add(%g, %u) : f32[{out}]"""
    record = fused(func(params, lines))
    assert kernels(record) == 1
    (group,) = (n for n in record.after.nodes if n.op == "fusion")
    assert len(products_of(group.blocks[0])) == 2


G = '%g = dot(%x, %a) {rule="m k, k n -> m n"} : f32[32, 32]\n'
U = '%u = dot(%x, %b) {rule="m k, k n -> m n"} : f32[32, 32]\n'
S = "f32[32, 32]"
SQUARE = "%x: f32[32, 32], %a: f32[32, 32], %b: f32[32, 32], %y: f32[32, 32]"
TWINS = {
    "different left operands": (
        G + '%u = dot(%y, %b) {rule="m k, k n -> m n"} : f32[32, 32]\n'
        "%z = mul(%g, %u) : f32[32, 32]",
        "different left operands",
    ),
    "the left operand and its transpose": (
        G + '%u = dot(%x, %b) {rule="k m, k n -> m n"} : f32[32, 32]\n'
        "%z = mul(%g, %u) : f32[32, 32]",
        "different left operands",
    ),
    "one right operand": (
        G + '%u = dot(%y, %a) {rule="m k, k n -> m n"} : f32[32, 32]\n'
        "%z = mul(%g, %u) : f32[32, 32]",
        "different left operands",
    ),
    "joined across": (
        G + U + "%t = transpose(%u) {perm=[1, 0]} : f32[32, 32]\n%z = mul(%g, %t) : f32[32, 32]",
        "",
    ),
    "joined by a concat": (G + U + "%z = concat(%g, %u) {axis=1} : f32[32, 64]", ""),
    "joined behind reductions": (
        G + U + '%r = reduce(%g) {axes=[1], kind="sum"} : f32[32]\n'
        '%s = reduce(%u) {axes=[1], kind="sum"} : f32[32]\n%z = mul(%r, %s) : f32[32]',
        "",
    ),
    "joined by a product": (
        G + U + '%z = dot(%g, %u) {rule="m k, k n -> m n"} : f32[32, 32]',
        "",
    ),
    "different index spaces": (
        G + '%v = slice(%b) {limit=[32, 1], start=[0, 0], step=[1, 1]} : f32[32, 1]\n'
        '%w = reshape(%v) : f32[32]\n'
        '%u = dot(%x, %w) {rule="m k, k -> m"} : f32[32]\n'
        "%s = broadcast(%u) {axes=[0]} : f32[32, 32]\n%z = mul(%g, %s) : f32[32, 32]",
        "",
    ),
    "one feeds the other": (
        G + '%u = dot(%x, %g) {rule="m k, k n -> m n"} : f32[32, 32]\n'
        "%z = mul(%g, %u) : f32[32, 32]",
        "a dot reads its operands",
    ),
    "a way around": (
        G + U + '%r = reduce(%u) {axes=[0], kind="max"} : f32[32]\n'
        "%s = broadcast(%r) {axes=[1]} : f32[32, 32]\n"
        "%t = mul(%g, %s) : f32[32, 32]\n%z = add(%t, %u) : f32[32, 32]",
        "another path",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_what_is_not_joined(name: str) -> None:
    lines, why = TWINS[name]
    record = fused(func(SQUARE, lines))
    for group in (n for n in record.after.nodes if n.op == "fusion"):
        assert sum(n.op == "dot" for n in group.blocks[0].nodes) < 2
    assert not why or any(why in r.reason for r in record.refused), record.refused


@pytest.mark.parametrize(("count", "groups"), [(3, 1), (8, 1), (9, 2)])
def test_any_number_of_products_is_one_kernel_as_far_as_tensor_cores_go(
    count: int, groups: int
) -> None:
    lines = [f'%d{i} = dot(%x, %y{i}) {{rule="m k, k n -> m n"}} : {S}' for i in range(count)]
    lines += [f"%z{i} = add(%{'d' if i == 1 else 'z'}{i - 1}, %d{i}) : {S}"
              for i in range(1, count)]  # fmt: skip
    params = ", ".join([f"%x: {S}", *(f"%y{i}: {S}" for i in range(count))])
    record = fused(func(params, "\n".join(lines)))
    assert kernels(record) == groups
    assert any("share the registers" in r.reason for r in record.refused) == (groups > 1)


def test_products_that_are_needed_elsewhere_are_results_too() -> None:
    text = str(func(SQUARE, G + U + "%z = mul(%g, %u) : f32[32, 32]"))
    text = text.replace("return %z", "return %g, %u, %z")
    text = text.replace("-> (f32[32, 32])", "-> (f32[32, 32], f32[32, 32], f32[32, 32])")
    record = fused(parse(text))
    (group,) = (n for n in record.after.nodes if n.op == "fusion")
    assert len(group.blocks[0].results) == 3


# ---- kernels


def kernel_of(group: Node, rows: int, lanes: int, step: int) -> Func:
    b = Builder()
    down = {"m": rows} if group.args[0].shape[0] != 1 else {}
    made = Products(in_blocks(group, **down, n=lanes, k=step), as_gpu(None)).kernel()
    count = len(group.blocks[0].results)
    results = [made] if count == 1 else [b.item(made, index=i) for i in range(count)]
    outside = [a for a in group.args]
    lowered = b.func("main", outside, results)
    verify(lowered)
    assert parse(str(lowered)) is lowered
    return lowered


@pytest.mark.parametrize(("build", "shapes"), JOINED, ids=lambda c: getattr(c, "__name__", None))
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("tile", [(32, 32, 32), (0, 0, 0)], ids=["small", "the model's"])
def test_values(
    build: Build,
    shapes: list[Shape],
    tile: tuple[int, int, int],
    dtype: str,
    rng: np.random.Generator,
) -> None:
    arrays = [floats(s, dtype, rng) for s in shapes]
    group = epilogue_of(build, shapes, dtype)
    lowered = kernel_of(group, *tile)
    assert_exact(lowered.interpret(*arrays), group, arrays, dtype)


def test_the_left_operand_is_read_once_for_each_step() -> None:
    text = str(kernel_of(epilogue_of(gated, JOINED[0][1], "bf16"), 32, 32, 32))
    loop = text[text.index('kind="serial"') :]
    body = loop[: loop.index("return")]
    assert (body.count("load(%p0"), body.count(" = dot(")) == (1, 2)
    assert text.count('kind="serial"') == 1


def test_inf_and_nan(rng: np.random.Generator) -> None:
    arrays = [floats(s, "f32", rng) for s in JOINED[0][1]]
    arrays[0][3, 5], arrays[1][8, 19], arrays[2][30, 2] = np.inf, np.nan, -np.inf
    group = epilogue_of(gated, JOINED[0][1], "f32")
    with np.errstate(all="ignore"):
        got = several(kernel_of(group, 32, 32, 32).interpret(*arrays))
        assert_near(got[0], exact(group, arrays)[0], "f32")


def test_products_of_different_operands_have_no_kernel() -> None:
    def build(b: Builder, x: Node, y: Node, w: Node) -> Node:
        first = b.dot(x, w, rule="m k, k n -> m n")
        return b.mul(first, b.dot(y, w, rule="m k, k n -> m n"))

    group = epilogue_of(build, [(8, 32), (8, 32), (32, 16)], "f32")
    with pytest.raises(CannotTile, match="different left operands"):
        Products(group, as_gpu(None)).kernel()


# ---- which tile, or a kernel for each

BOTH = Product(2048, 14336, 4096, gemms=2)


def test_two_products_share_the_registers_of_a_tile() -> None:
    largest = max(t.rows * t.lanes // t.warps for t in measured_tiles(GPU, "half"))
    for tile in ranked(BOTH, BF16, GPU):
        assert 2 * tile.rows * tile.lanes // tile.warps <= largest
        assert tile.lanes >= 16


def test_joined_is_faster_where_products_are_large() -> None:
    best = min(predicted(t, BOTH, BF16, GPU).seconds for t in ranked(BOTH, BF16, GPU))
    assert best < unfused_seconds(BOTH, BF16, GPU)


def big(build: Build) -> Func:
    shapes = [(2048, 4096), (4096, 1024), (4096, 1024), (2048, 1024)]
    group = epilogue_of(build, shapes, "bf16")
    b = Builder()
    return b.func("main", group.args, [b.item(group, index=i) for i in range(3)])


def test_apart_stands_among_the_tiles() -> None:
    record = Pipeline("schedule{most=20}").run(big(kept)).records[0]
    group = next(n for n in record.after.nodes if n.op == "fusion")
    assert schedules_of(group).count("unfused") == 1
    (note,) = Pipeline("schedule").run(big(kept)).records[0].notes
    assert "unfused" in note


@pytest.mark.parametrize("build", [gated, kept, thrice])
def test_set_apart(build: Build, rng: np.random.Generator) -> None:
    """A kernel for each, the same values; a product that is a result is written once."""
    shapes = next(s for b, s in JOINED if b is build)
    group = epilogue_of(build, shapes, "f32")
    attrs = {**group.attrs, "schedule": "unfused"}
    group = Node(group.op, group.args, attrs, group.type, group.blocks)
    b = Builder()
    count = len(group.blocks[0].results)
    results = [group] if count == 1 else [b.item(group, index=i) for i in range(count)]
    source = b.func("main", group.args, results)
    lowered = Pipeline("blocks").run(source).func
    made = [n for n in lowered.nodes if n.op == "kernel"]
    products = sum(n.op == "dot" for n in group.blocks[0].nodes)
    assert [n.attrs["ops"].count("dot") for n in made] == [1] * products
    written = [len(n.blocks[0].params) - len(n.args) for n in made]
    assert sum(written) == (2 if build is gated else 3)
    arrays = [floats(s, "f32", rng) for s in shapes]
    assert_exact(lowered.interpret(*arrays), group, arrays, "f32")
