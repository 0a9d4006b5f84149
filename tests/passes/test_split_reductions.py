"""split_reductions: reductions and products in two stages, and those that stay in one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gpu_cases import PRODUCTS, Shape, assert_near, einsum, floats
from kernel_cases import random_array
from random_programs import random_program
from rule_cases import Kept, Rewrites, check_kept, check_rewrite
from rule_cases import func as rule_func

import stack
from stack.backends.cuda import BACKEND as CUDA
from stack.backends.triton import BACKEND as TRITON
from stack.ir import Builder, Func, make, param, parse, tensor, verify
from stack.ir.data import round_bf16
from stack.ir.dim import symbol
from stack.ir.streaming import interpret_in_tiles
from stack.rewrite import Pipeline
from stack.rewrite.truth import Truth
from stack.run.backend import Backend

ALWAYS = "split_reductions{parts=4}"
ROWS = "%x: f32[6, 64]"

REWRITES: Rewrites = {
    "a sum over columns": (
        "%x: f32[64, 6]",
        '%z = reduce(%x) {axes=[0], kind="sum"} : f32[6]',
        """%a = reshape(%x) : f32[4, 16, 6]
        %b = reduce(%a) {axes=[1], kind="sum"} : f32[4, 6]
        %z = reduce(%b) {axes=[0], kind="sum"} : f32[6]""",
    ),
    "a row": (
        ROWS,
        '%z = reduce(%x) {axes=[1], kind="max"} : f32[6]',
        """%a = reshape(%x) : f32[6, 4, 16]
        %b = reduce(%a) {axes=[2], kind="max"} : f32[6, 4]
        %z = reduce(%b) {axes=[1], kind="max"} : f32[6]""",
    ),
    "partial sums of 16 bits are wide": (
        "%x: bf16[64, 6]",
        '%z = reduce(%x) {axes=[0], kind="sum"} : bf16[6]',
        """%w = cast(%x) : f32[64, 6]
        %a = reshape(%w) : f32[4, 16, 6]
        %b = reduce(%a) {axes=[1], kind="sum"} : f32[4, 6]
        %c = reduce(%b) {axes=[0], kind="sum"} : f32[6]
        %z = cast(%c) : bf16[6]""",
    ),
    "a prime size is padded with what changes nothing": (
        "%x: f32[61, 6]",
        '%z = reduce(%x) {axes=[0], kind="min"} : f32[6]',
        """%p = pad(%x, inf:f32) {high=[3, 0], interior=[0, 0], low=[0, 0]} : f32[64, 6]
        %a = reshape(%p) : f32[4, 16, 6]
        %b = reduce(%a) {axes=[1], kind="min"} : f32[4, 6]
        %z = reduce(%b) {axes=[0], kind="min"} : f32[6]""",
    ),
    "an outer axis is parts as it is": (
        "%x: f32[2, 64, 6]",
        '%z = reduce(%x) {axes=[0, 1], kind="sum"} : f32[6]',
        """%a = reshape(%x) : f32[2, 2, 32, 6]
        %b = reduce(%a) {axes=[2], kind="sum"} : f32[2, 2, 6]
        %z = reduce(%b) {axes=[0, 1], kind="sum"} : f32[6]""",
    ),
    "the contracted axis of a product": (
        "%x: bf16[6, 64], %y: bf16[10, 64]",
        '%z = dot(%x, %y) {rule="m k, n k -> m n"} : bf16[6, 10]',
        """%a = reshape(%x) : bf16[6, 4, 16]
        %b = reshape(%y) : bf16[10, 4, 16]
        %c = dot(%a, %b) {rule="m a k, n a k -> a m n"} : f32[4, 6, 10]
        %d = reduce(%c) {axes=[0], kind="sum"} : f32[6, 10]
        %z = cast(%d) : bf16[6, 10]""",
    ),
    "a batch of products": (
        "%x: f32[3, 64, 6], %y: f32[3, 64, 10]",
        '%z = dot(%x, %y) {rule="b k m, b k n -> b m n"} : f32[3, 6, 10]',
        """%a = reshape(%x) : f32[3, 4, 16, 6]
        %b = reshape(%y) : f32[3, 4, 16, 10]
        %c = dot(%a, %b) {rule="b a k m, b a k n -> a b m n"} : f32[4, 3, 6, 10]
        %z = reduce(%c) {axes=[0], kind="sum"} : f32[3, 6, 10]""",
    ),
}

LONG: Rewrites = {
    "two long axes": (
        "%x: f32[301, 303]",
        '%z = reduce(%x) {axes=[0, 1], kind="sum"} : f32[]',
        """%b = reduce(%x) {axes=[1], kind="sum"} : f32[301]
        %z = reduce(%b) {axes=[0], kind="sum"} : f32[]""",
    ),
}

FOLDED: Rewrites = {
    "rows of which eight begin aligned": (
        "%x: bf16[2048, 4095]",
        '%z = reduce(%x) {axes=[0], kind="max"} : bf16[4095]',
        """%w = cast(%x) : f32[2048, 4095]
        %f = reshape(%w) : f32[8386560]
        %a = reshape(%f) : f32[2, 128, 32760]
        %b = reduce(%a) {axes=[1], kind="max"} : f32[2, 32760]
        %c = reshape(%b) : f32[16, 4095]
        %d = reduce(%c) {axes=[0], kind="max"} : f32[4095]
        %z = cast(%d) : bf16[4095]""",
    ),
    "two axes, and rows that are left over": (
        "%x: f32[7, 99, 5, 13]",
        '%z = reduce(%x) {axes=[0, 1], kind="sum"} : f32[5, 13]',
        """%f = reshape(%x) : f32[45045]
        %m = slice(%f) {limit=[44980], start=[0], step=[1]} : f32[44980]
        %a = reshape(%m) : f32[1, 173, 260]
        %b = reduce(%a) {axes=[1], kind="sum"} : f32[1, 260]
        %c = reshape(%b) : f32[4, 65]
        %d = reduce(%c) {axes=[0], kind="sum"} : f32[65]
        %r = slice(%f) {limit=[45045], start=[44980], step=[1]} : f32[65]
        %s = add(%d, %r) : f32[65]
        %z = reshape(%s) : f32[5, 13]""",
    ),
}
NOT_FOLDED: Kept = {
    "aligned rows": ("%x: f32[512, 128]", '%z = reduce(%x) {axes=[0], kind="sum"} : f32[128]'),
    "few rows": ("%x: f32[60, 129]", '%z = reduce(%x) {axes=[0], kind="sum"} : f32[129]'),
    "a row is added to each": (
        "%x: f32[512, 129], %y: f32[129]",
        "%b = broadcast(%y) {axes=[1]} : f32[512, 129]\n%a = add(%x, %b) : f32[512, 129]\n"
        '%z = reduce(%a) {axes=[0], kind="sum"} : f32[129]',
    ),
    "a transposed array": (
        "%x: f32[129, 512]",
        "%t = transpose(%x) {perm=[1, 0]} : f32[512, 129]\n"
        '%z = reduce(%t) {axes=[0], kind="sum"} : f32[129]',
    ),
    "a middle axis": ("%x: f32[9, 512, 33]", '%z = reduce(%x) {axes=[1], kind="sum"} : f32[9, 33]'),
}

# a stream: the states, their correction, and the result
BEST = """{{(%p: bf16[{shape}])
        %c = cast(%p) : f32[{shape}]
        %m = reduce(%c) {{axes=[{axis}], kind="max"}} : f32[{kept}]
        %b = broadcast(%m) {{axes=[{others}]}} : f32[{shape}]
        %q = eq(%c, %b) : bool[{shape}]
        %n = ne(%c, %c) : bool[{shape}]
        %o = or(%q, %n) : bool[{shape}]
        %i = iota() {{axis={along}}} : i32[{shape}]
        %s = select(%o, %i, {size}:i32) : i32[{shape}]
        %a = reduce(%s) {{axes=[{axis}], kind="min"}} : i32[{kept}]
        return %m, %a
        }} {{(%om: f32[{kept}], %oa: i32[{kept}], %nm: f32[{kept}], %na: i32[{kept}])
        %e = eq(%om, %nm) : bool[{kept}]
        %u = ne(%om, %om) : bool[{kept}]
        %k = or(%e, %u) : bool[{kept}]
        %w = select(%k, %oa, {size}:i32) : i32[{kept}]
        return %om, %w
        }} {{(%sm: f32[{kept}], %sa: i32[{kept}], %p: bf16[{shape}])
        return %sa
        }}"""


def _best(shape: Shape, axis: int, along: int | None = None, is_turned: bool = False) -> Func:
    """An argmax as a stream, of positions `along` an axis, by default its own."""
    kept = [s for a, s in enumerate(shape) if a != axis]
    others = [a for a in range(len(shape)) if a != axis]
    words = {"shape": shape, "kept": kept, "others": others}
    texts = {name: ", ".join(map(str, numbers)) for name, numbers in words.items()}
    along = axis if along is None else along
    body = BEST.format(axis=axis, along=along, size=shape[axis], **texts)
    stream = f'%z = stream(%x) {{name="argmax"}} : i32[{texts["kept"]}] {body}'
    params, lines = f"%x: bf16[{texts['shape']}]", [stream]
    if is_turned:
        params = f"%y: bf16[{shape[1]}, {shape[0]}]"
        lines = [f"%x = transpose(%y) {{perm=[1, 0]}} : bf16[{texts['shape']}]", stream]
    body = "\n".join(lines)
    kind = f"i32[{texts['kept']}]"
    return parse(f"func @main({params}) -> ({kind}) at tensor {{\n{body}\n  return %z\n}}\n")


FOLDED_ARGMAX = """func @main(%x: bf16[257, 33]) -> (i32[33]) at tensor {
  %reshape = reshape(%x) : bf16[8481]
  %stream = stream(%reshape) {name="argmax", part=32} : (f32[1, 264], i32[1, 264]) {
    (%p0: bf16[8481])
    %slice = slice(%p0) {limit=[8448], start=[0], step=[1]} : bf16[8448]
    %reshape = reshape(%slice) : bf16[32, 264]
    %c = cast(%reshape) : f32[32, 264]
    %m = reduce(%c) {axes=[0], kind="max"} : f32[264]
    %b = broadcast(%m) {axes=[1]} : f32[32, 264]
    %q = eq(%c, %b) : bool[32, 264]
    %n = ne(%c, %c) : bool[32, 264]
    %o = or(%q, %n) : bool[32, 264]
    %i = iota() {axis=0} : i32[32, 264]
    %s = select(%o, %i, 257:i32) : i32[32, 264]
    %a = reduce(%s) {axes=[0], kind="min"} : i32[264]
    return %m, %a
  } {(%om: f32[264], %oa: i32[264], %nm: f32[264], %na: i32[264])
    %e = eq(%om, %nm) : bool[264]
    %u = ne(%om, %om) : bool[264]
    %k = or(%e, %u) : bool[264]
    %w = select(%k, %oa, 257:i32) : i32[264]
    return %om, %w
  } {(%s0: f32[264], %s1: i32[264], %p0: bf16[8481])
    return %s0, %s1
  }
  %item = item(%stream) {index=0} : f32[1, 264]
  %reshape_1 = reshape(%item) : f32[1, 8, 33]
  %item_1 = item(%stream) {index=1} : i32[1, 264]
  %reshape_2 = reshape(%item_1) : i32[1, 8, 33]
  %z = fusion(%reshape_1, %reshape_2, %reshape) {kind="reduction", name="merge"} : i32[33] {
    (%s0: f32[1, 8, 33], %s1: i32[1, 8, 33], %t0: bf16[8481])
    %reshape = reshape(%s0) : f32[8, 33]
    %reduce = reduce(%reshape) {axes=[0], kind="max"} : f32[33]
    %slice = slice(%t0) {limit=[8481], start=[8448], step=[1]} : bf16[33]
    %reshape_1 = reshape(%slice) : bf16[1, 33]
    %c = cast(%reshape_1) : f32[1, 33]
    %m = reduce(%c) {axes=[0], kind="max"} : f32[33]
    %max = max(%reduce, %m) : f32[33]
    %broadcast = broadcast(%max) {axes=[1]} : f32[8, 33]
    %eq = eq(%reshape, %broadcast) : bool[8, 33]
    %ne = ne(%reshape, %reshape) : bool[8, 33]
    %or = or(%eq, %ne) : bool[8, 33]
    %mul = mul(%s1, 8:i32) : i32[1, 8, 33]
    %iota = iota() {axis=1} : i32[1, 8, 33]
    %add = add(%mul, %iota) : i32[1, 8, 33]
    %lt = lt(%s1, 257:i32) : bool[1, 8, 33]
    %select = select(%lt, %add, 257:i32) : i32[1, 8, 33]
    %reshape_2 = reshape(%select) : i32[8, 33]
    %select_1 = select(%or, %reshape_2, 257:i32) : i32[8, 33]
    %reduce_1 = reduce(%select_1) {axes=[0], kind="min"} : i32[33]
    %eq_1 = eq(%m, %max) : bool[33]
    %ne_1 = ne(%m, %m) : bool[33]
    %or_1 = or(%eq_1, %ne_1) : bool[33]
    %b = broadcast(%m) {axes=[1]} : f32[1, 33]
    %q = eq(%c, %b) : bool[1, 33]
    %n = ne(%c, %c) : bool[1, 33]
    %o = or(%q, %n) : bool[1, 33]
    %iota_1 = iota() {axis=0} : i32[1, 33]
    %i = add(%iota_1, 256:i32) : i32[1, 33]
    %s = select(%o, %i, 257:i32) : i32[1, 33]
    %a = reduce(%s) {axes=[0], kind="min"} : i32[33]
    %select_2 = select(%or_1, %a, 257:i32) : i32[33]
    %min = min(%reduce_1, %select_2) : i32[33]
    return %min
  }
  return %z
}
"""
NOT_FOLDED_STREAMS: dict[str, Func] = {
    "aligned rows": _best((512, 64), 0),
    "few rows": _best((255, 33), 0),
    "along the rows": _best((512, 513), 1),
    "arrays of a batch begin at odd addresses": _best((3, 513, 33), 1),
    "positions of another axis": _best((512, 33), 0, 1),
    "a transposed array": _best((512, 33), 0, is_turned=True),
}

KEPT: Kept = {
    "parts as large as the axis": (
        "%x: f32[4, 6]",
        '%z = reduce(%x) {axes=[0], kind="sum"} : f32[6]',
    ),
    "nothing to reduce": ("%x: f32[0, 6]", '%z = reduce(%x) {axes=[0], kind="sum"} : f32[6]'),
    "a stage of two": (
        "%x: f32[8, 64, 6]",
        '%y = reduce(%x) {axes=[1], kind="sum"} : f32[8, 6]\n'
        '%z = reduce(%y) {axes=[0], kind="sum"} : f32[6]',
    ),
    "complex numbers": ("%x: c64[64, 6]", '%z = reduce(%x) {axes=[0], kind="sum"} : c64[6]'),
    "a depth that has no equal parts": (
        "%x: f32[6, 63], %y: f32[63, 10]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : f32[6, 10]',
    ),
    "two contracted axes": (
        "%x: f32[6, 8, 64], %y: f32[8, 64, 10]",
        '%z = dot(%x, %y) {rule="m j k, j k n -> m n"} : f32[6, 10]',
    ),
}

# by the model: what has too few programs on a GPU, and its twin that has enough of them
SPLIT = {
    "columns": ("%x: bf16[16384, 8192]", "[0]", "bf16[8192]"),
    "few columns": ("%x: f32[100000, 64]", "[0]", "f32[64]"),
    "everything": ("%x: f32[8192, 8192]", "[0, 1]", "f32[]"),
    "a few long rows": ("%x: bf16[4, 4000000]", "[1]", "bf16[4]"),
    "batch and sequence": ("%x: f32[8, 1024, 768]", "[0, 1]", "f32[768]"),
}
WHOLE = {
    "many rows": ("%x: bf16[16384, 8192]", "[1]", "bf16[16384]"),
    "a short full sum": ("%x: f32[1024]", "[0]", "f32[]"),
    "many columns of few rows": ("%x: f32[64, 1000000]", "[0]", "f32[1000000]"),
    "two axes that a tile holds": ("%x: f32[30, 40]", "[0, 1]", "f32[]"),
    "one row of a norm": ("%x: bf16[1, 4096]", "[1]", "bf16[1]"),
}
DEEP = {"16 rows": (16, 1024, 16384), "few tiles": (256, 256, 65536)}
FULL = {
    "weights": (16, 4096, 4096),
    "large": (8192, 8192, 8192),
    "shallow": (16, 4096, 128),
    "many tiles": (512, 14336, 4096),
}


@pytest.mark.parametrize("name", REWRITES)
def test_splits(name: str) -> None:
    check_rewrite(ALWAYS, REWRITES[name])


@pytest.mark.parametrize("name", LONG)
def test_a_kernel_walks_along_one_axis(name: str) -> None:
    check_rewrite("split_reductions", LONG[name])


@pytest.mark.parametrize("name", FOLDED)
def test_several_rows_are_an_aligned_one(name: str) -> None:
    check_rewrite("split_reductions", FOLDED[name])


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_rows_stay_alone(name: str) -> None:
    notes = Pipeline("split_reductions").run(rule_func(*NOT_FOLDED[name])).records[0].notes
    assert not any("for loads of 16 bytes" in note for note in notes)


def test_several_rows_of_a_stream_are_an_aligned_one() -> None:
    """An argmax of 257 rows: 32 times eight, and one row that is left over."""
    program = _best((257, 33), 0)
    made = Pipeline("split_reductions").run(program, check=True).func
    assert Truth(program).problem(made) == ""
    assert str(made) == str(parse(FOLDED_ARGMAX))
    assert Pipeline("split_reductions").run(made).func is made


def test_a_position_that_no_element_has_stays_the_end(rng: np.random.Generator) -> None:
    text = str(_best((257, 33), 0)).replace("%o = or(%q, %n)", "%o = gt(%c, 9.0:f32)")
    program = parse(text.replace("return %om, %w", "return %om, %oa"))
    made = Pipeline("split_reductions").run(program, check=True).func
    assert made is not program
    x = rng.integers(-5, 5, (257, 33)).astype(np.float32)
    x[[7, 60], 3] = x[256, 4] = 10
    want = np.full(33, 257)
    want[3], want[4] = 7, 256
    np.testing.assert_array_equal(made.interpret(x), want)


def test_programs_of_a_folded_stream_have_columns() -> None:
    """Its rows are parts of flat memory, in which neighbouring columns are neighbours."""
    func = Pipeline("split_reductions,fuse,schedule").run(_best((4096, 4095), 0)).func
    (stream,) = (n for n in func.body.nodes if n.op == "stream")
    assert str(stream.attrs["schedule"]).startswith("c=64@grid k=16@serial")


def test_tiles_of_a_stream_read_views_of_arguments(rng: np.random.Generator) -> None:
    func = Pipeline("split_reductions").run(_best((257, 33), 0)).func
    (stream,) = (n for n in func.body.nodes if n.op == "stream")
    whole = make("stream", stream.args, {"name": "argmax"}, stream.blocks)
    x = rng.integers(-9, 9, 257 * 33).astype(np.float32)
    best, place = interpret_in_tiles(whole, [x], 7, 3)
    rows = x[: 256 * 33].reshape(32, 8 * 33)
    np.testing.assert_array_equal(best, rows.max(0))
    np.testing.assert_array_equal(place, rows.argmax(0))


@pytest.mark.parametrize("name", NOT_FOLDED_STREAMS)
def test_rows_of_a_stream_stay_alone(name: str) -> None:
    notes = Pipeline("split_reductions").run(NOT_FOLDED_STREAMS[name]).records[0].notes
    assert not any("for loads of 16 bytes" in note for note in notes)


@pytest.mark.parametrize("name", KEPT)
def test_stays(name: str) -> None:
    check_kept(ALWAYS, KEPT[name])


def test_unknown_sizes_stay() -> None:
    n = symbol("n", 1, 1 << 20)
    x, y = param("x", tensor("f32", n, 6)), param("y", tensor("f32", n, 5))
    b = Builder()
    results = [b.reduce(x, kind="sum", axes=(0,)), b.dot(x, y, rule="n a, n b -> a b")]
    func = b.func("main", [x, y], results)
    assert Pipeline(ALWAYS).run(func).func is func


def _reduce(params: str, axes: str, kind: str) -> Func:
    return parse(
        f"func @main({params}) -> ({kind}) at tensor {{\n"
        f'  %z = reduce(%x) {{axes={axes}, kind="sum"}} : {kind}\n  return %z\n}}\n'
    )


def _product(m: int, n: int, k: int) -> Func:
    x, y = param("x", tensor("bf16", m, k)), param("y", tensor("bf16", n, k))
    b = Builder()
    return b.func("main", [x, y], [b.dot(x, y, rule="m k, n k -> m n")])


@pytest.mark.parametrize("name", SPLIT)
def test_the_model_splits(name: str) -> None:
    result = Pipeline("split_reductions").run(_reduce(*SPLIT[name]))
    assert result.records[0].by_rule == {"split_reduce": 1}
    (note,) = result.records[0].notes
    assert note.startswith("%z: ") and note.endswith(" parts, for 132 processors")
    assert Pipeline("split_reductions").run(result.func).func is result.func


@pytest.mark.parametrize("name", WHOLE)
def test_the_model_leaves(name: str) -> None:
    func = _reduce(*WHOLE[name])
    assert Pipeline("split_reductions").run(func).func is func


@pytest.mark.parametrize("name", DEEP)
def test_the_model_splits_products(name: str) -> None:
    result = Pipeline("split_reductions").run(_product(*DEEP[name]))
    assert result.records[0].by_rule == {"split_dot": 1}
    assert Pipeline("split_reductions").run(result.func).func is result.func


@pytest.mark.parametrize("name", FULL)
def test_the_model_leaves_products(name: str) -> None:
    func = _product(*FULL[name])
    assert Pipeline("split_reductions").run(func).func is func


# ---- values


def _lowered(func: Func, backend: Backend = TRITON) -> Func:
    """Through all stages of a backend, with every reduction split that can be."""
    for stage, spec in backend.lowering.stages:
        func = Pipeline(ALWAYS if stage == "split" else spec).run(func).func
        verify(func)
    return func


@pytest.mark.parametrize("backend", [TRITON, CUDA], ids=lambda b: b.name)
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("shape", [(67, 33), (130, 129), (5, 29, 3, 11)])
def test_folded_rows(backend: Backend, kind: str, shape: Shape, rng: np.random.Generator) -> None:
    x = random_array(("bf16", *shape), rng)
    x[3, 1], x[-1, 2], x[0, 3] = np.nan, np.inf, -np.inf
    axes = tuple(range(len(shape) // 2))
    b, p = Builder(), param("x", tensor("bf16", *shape))
    func = b.func("main", [p], [b.reduce(p, kind=kind, axes=axes)])
    for stage, spec in backend.lowering.stages:
        func = Pipeline("split_reductions" if stage == "split" else spec).run(func).func
        verify(func)
    found = np.asarray(func.interpret(x))
    want = {"sum": np.sum, "max": np.max, "min": np.min}[kind](x.astype(np.float64), axis=axes)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    assert_near(np.nan_to_num(found, posinf=9, neginf=-9), np.nan_to_num(want, posinf=9, neginf=-9),
                "bf16")  # fmt: skip


FOLDED_PROGRAMS = {
    "argmax": lambda x, axis: x.argmax(axis),
    "argmin": lambda x, axis: x.argmin(axis),
    "max": lambda x, axis: tuple(x.max(axis)),
    "var": lambda x, axis: x.var(axis),
    "std and mean": lambda x, axis: torch.std_mean(x, axis),
    "logsumexp": lambda x, axis: torch.logsumexp(x.float(), axis),
}


def _columns(shape: Shape, axis: int, special: bool) -> torch.Tensor:
    """Few distinct values, so that many are equal; `special`: with columns of nan, inf and -0.0."""
    x = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)) / 8
    lines = x.movedim(axis, 0).flatten(1)
    if special:
        size = shape[axis]
        lines[size // 3, 1] = lines[size - 1, 1] = lines[5, 1] = math.nan
        lines[size - 1, 2] = lines[2, 3] = math.nan
        lines[:, 4], lines[:, 5] = -0.0, 0.0
        lines[::2, 6], lines[1::2, 6] = -0.0, 0.0
        lines[7, 7] = lines[size - 1, 7] = math.inf
        lines[:, 8] = -math.inf
    return lines.unflatten(1, [s for a, s in enumerate(shape) if a != axis]).movedim(0, axis)


@pytest.mark.each
@pytest.mark.parametrize("backend", [TRITON, CUDA], ids=lambda b: b.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", FOLDED_PROGRAMS)
@pytest.mark.parametrize(("shape", "axis"), [((519, 33), 0), ((3, 520, 33), 1), ((1030, 11), 0)])
def test_folded_streams(
    backend: Backend, dtype: torch.dtype, name: str, shape: Shape, axis: int
) -> None:
    fn = FOLDED_PROGRAMS[name]
    x = _columns(shape, axis, name in ("argmax", "argmin", "max")).to(dtype).contiguous()
    func, notes = stack.trace(lambda x: fn(x, axis), x), list[str]()
    for _, spec in backend.lowering.stages:
        result = Pipeline(spec).run(func)
        func, notes = result.func, notes + [n for r in result.records for n in r.notes]
        verify(func)
    assert any("for loads of 16 bytes" in note for note in notes)
    found, want = func.interpret(x.float().numpy()), fn(x, axis)
    exact = fn(x.double(), axis)
    for got, theirs, true in zip(*map(_several, (found, want, exact)), strict=True):
        if not theirs.is_floating_point():
            np.testing.assert_array_equal(got, theirs.numpy())
            continue
        off = np.abs(np.asarray(got, np.float64) - true.double().numpy())
        allowed = 2 * (theirs.double() - true).abs().numpy() + 1e-6
        is_finite = np.isfinite(true.numpy())
        assert (off <= allowed)[is_finite].all()
        np.testing.assert_array_equal(np.asarray(got)[~is_finite], true.numpy()[~is_finite])


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i64", "bf16"])
@pytest.mark.parametrize("shape", [(67, 33), (33, 67), (2, 40, 5), (1, 97)])
def test_reductions(kind: str, dtype: str, shape: Shape, rng: np.random.Generator) -> None:
    values = random_array((dtype, *shape), rng)
    if kind == "prod":
        values = np.clip(values, -1, 1)
    wide = values.astype(np.float64) if dtype != "i64" else values
    numpy = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[kind]
    for axes in ((0,), (1,), (0, 1)):
        x = param("x", tensor(dtype, *shape))
        b = Builder()
        func = b.func("main", [x], [b.reduce(x, kind=kind, axes=axes)])
        found = np.asarray(_lowered(func).interpret(values))
        want = np.asarray(numpy(wide, axis=axes))
        if dtype == "i64":
            np.testing.assert_array_equal(found, want)
        else:
            assert_near(found, want, dtype)


@pytest.mark.parametrize("backend", [TRITON, CUDA], ids=lambda b: b.name)
def test_inf_and_nan_stay_in_their_columns(backend: Backend, rng: np.random.Generator) -> None:
    x = rng.standard_normal((67, 5)).astype(np.float32)
    x[3, 1], x[66, 2], x[0, 3] = np.nan, np.inf, -np.inf
    func = _reduce("%x: f32[67, 5]", "[0]", "f32[5]")
    found = np.asarray(_lowered(func, backend).interpret(x))
    want = x.astype(np.float64).sum(0)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(found[2:4], want[2:4].astype(np.float32))
    assert_near(found[[0, 4]], want[[0, 4]], "f32")


def test_a_long_sum_of_16_bits_is_rounded_once(rng: np.random.Generator) -> None:
    x = round_bf16(rng.uniform(0.5, 1.0, (4096, 3)).astype(np.float32))
    found = np.asarray(_lowered(_reduce("%x: bf16[4096, 3]", "[0]", "bf16[3]")).interpret(x))
    want = x.astype(np.float64).sum(0)
    assert np.abs(found.astype(np.float64) / want - 1).max() <= 2.0**-8


def test_a_sum_and_a_product_on_cuda(rng: np.random.Generator) -> None:
    """Two kernels each: in parts, then the parts with what follows."""
    x, w = floats((12, 96), "f32", rng), floats((96, 16), "f32", rng)
    p, q = param("x", tensor("f32", *x.shape)), param("w", tensor("f32", *w.shape))
    b = Builder()
    total = b.mul(b.reduce(p, kind="sum", axes=(0, 1)), 0.5)
    made = _lowered(b.func("main", [p], [total]), CUDA)
    assert [n.op for n in made.nodes].count("kernel") == 2
    np.testing.assert_allclose(made.interpret(x), x.astype(np.float64).sum() / 2, rtol=1e-5)
    b = Builder()
    made = _lowered(b.func("main", [p, q], [b.add(b.dot(p, q, rule="m k, k n -> m n"), 1.0)]), CUDA)
    assert [n.op for n in made.nodes].count("kernel") == 2
    assert_near(np.asarray(made.interpret(x, w)), x.astype(np.float64) @ w + 1, "f32")


@pytest.mark.parametrize(("rule", "left", "right"), PRODUCTS)
def test_products(rule: str, left: Shape, right: Shape, rng: np.random.Generator) -> None:
    x, y = (param(n, tensor("f32", *s)) for n, s in (("x", left), ("y", right)))
    b = Builder()
    func = b.func("main", [x, y], [b.dot(x, y, rule=rule)])
    after = Pipeline(ALWAYS).run(func).func
    values = [floats(s, "f32", rng) for s in (left, right)]
    assert_near(np.asarray(after.interpret(*values)), einsum(rule, *values), "f32")


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    program = random_program(7000 + seed, small=True)
    after = Pipeline("split_reductions{parts=2}").run(program.func).func
    verify(after)
    assert parse(str(after)) is after
    assert not program.compare(after.interpret(*program.inputs))
