"""Rows shorter than a vector, of what lies across: lanes are many rows, whose lines are turned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack import Pipeline
from stack.ir import Builder, Func, param, parse, tensor, verify
from stack.ir.builder import constant
from stack.target import load

torch = pytest.importorskip("torch")

BEFORE = """func @main(%x: f32[3, 20]) -> (f32[20, 4]) at tensor {
  %t = transpose(%x) {perm=[1, 0]} : f32[20, 3]
  %y = pad(%t, 0.0:f32) {high=[0, 1], interior=[0, 0], low=[0, 0]} : f32[20, 4]
  return %y
}
"""

TILED = """func @main(%x: f32[3, 20]) -> (f32[20, 4]) at tensor {
  %y = kernel(%x) {level="tile", name="pad", ops=["transpose", "pad"]} : f32[20, 4] \
{(%p0: f32[3, 20] in global, %o0: f32[20, 4] in global)
    %in_t = iota() {axis=0} : i64<20>
    %loop = loop(%o0) {kind="serial"} : f32[20, 4] in global \
{(%c2 < 4, %o_4: f32[20, 4] in global)
      %lt = lt(%c2, 3:i64) : bool[]
      %t = load(%p0, %c2, 0:i64, %lt, 0.0:f32) : f32<20>
      %broadcast = broadcast(%c2) {axes=[]} : i64<20>
      %store = store(%o_4, %t, %in_t, %broadcast) : f32[20, 4] in global
      return %store
    }
    return %loop
  }
  return %y
}
"""

LOOPS = """func @main(%x: f32[3, 20]) -> (f32[20, 3]) at tensor {
  %transpose = kernel(%x) {level="loop", name="transpose", ops=["transpose"]} : f32[20, 3] \
{(%p0: f32[3, 20] in global, %o0: f32[20, 3] in global)
    %alloc = alloc() {name="lines__1"} : f32[3, 20] in local
    %loop = loop(%alloc) {kind="serial"} : f32[3, 20] in local \
{(%c2 < 3, %lines__1_held: f32[3, 20] in local)
      %transpose_1 = load(%p0, %c2, 0:i64) : f32<20>
      %store_1 = store(%lines__1_held, %transpose_1, %c2, 0:i64) : f32[3, 20] in local
      return %store_1
    }
    %load = load(%loop, 0:i64, 0:i64) : f32<3x20>
    %transpose = transpose(%load) {perm=[1, 0]} : f32<20x3>
    %store = store(%o0, %transpose, 0:i64, 0:i64) : f32[20, 3] in global
    return %store
  }
  return %transpose
}
"""


def turned(shape: tuple[int, ...], dtype: str = "f32") -> Func:
    b, x = Builder(), param("x", tensor(dtype, *shape))
    return b.func("main", [x], [b.transpose(x, perm=(*range(1, len(shape)), 0))])


def lowered(func: Func) -> Func:
    made = Pipeline("fuse,tile,distribute").run(func, target=load("avx2")).func
    verify(made)
    return made


def is_taken(func: Func) -> bool:
    return 'name="lines__' in str(lowered(func))


def test_text() -> None:
    tiled = Pipeline("fuse,tile").run(parse(BEFORE), target=load("avx2")).func
    assert str(tiled) == str(parse(TILED))
    made = Pipeline("tile,distribute").run(turned((3, 20)), target=load("avx2")).func
    assert str(made) == str(parse(LOOPS))


@pytest.mark.parametrize("rows, row, expected", [
    (8, 7, True),
    (7, 7, False),  # rows do not fill a vector
    (8, 8, False),  # a row does
    (8, 1, False),  # one line lies both ways
])  # fmt: skip
def test_a_vector_of_rows(rows: int, row: int, expected: bool) -> None:
    assert is_taken(turned((row, rows))) is expected


def test_sums_along_a_row_are_not() -> None:
    b, x = Builder(), param("x", tensor("f32", 3, 20))
    v = b.transpose(x, perm=(1, 0))
    total = b.broadcast(b.reduce(v, kind="sum", axes=(1,)), axes=(0,), type=v.type)
    assert not is_taken(b.func("main", [x], [b.sub(v, total)]))


def test_nor_bits_in_bytes() -> None:
    assert not is_taken(turned((3, 20), "bool"))


@pytest.mark.parametrize("dtype, row, expected", [
    ("f32", 5, False), ("f32", 2, False), ("bf16", 3, True), ("bf16", 4, False), ("i8", 7, True),
])  # fmt: skip
def test_rows_that_lie_along_are_where_lanes_would_idle(
    dtype: str, row: int, expected: bool
) -> None:
    """Less than a quarter of a vector."""
    b, x = Builder(), param("x", tensor(dtype, 20, row - 1))
    made = b.pad(x, constant(7, x.dtype), low=(0, 0), high=(0, 1), interior=(0, 0))
    func = b.func("main", [x], [made])
    assert is_taken(func) is expected
    values = np.random.default_rng(row).integers(-9, 9, (20, row - 1)).astype(x.dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(values), func.interpret(values))


def test_the_most_of_what_is_read_decides() -> None:
    for size, expected in ((40, True), (20, False)):
        b, x, y = Builder(), param("x", tensor("f32", 5, size)), param("y", tensor("f32", 20, 5))
        part = b.slice(x, start=(0, 0), limit=(5, 20), step=(1, 1))
        func = b.func("main", [x, y], [b.add(b.transpose(part, perm=(1, 0)), y)])
        assert is_taken(func) is expected


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "i8"])
@pytest.mark.parametrize("shape", [(2, 8), (3, 17), (5, 513), (7, 1100), (4, 3, 9), (3, 0)])
def test_values(shape: tuple[int, ...], dtype: str) -> None:
    func = turned(shape, dtype)
    x = np.random.default_rng(shape[-1]).integers(-9, 9, shape)
    x = x.astype(func.params[0].dtype.numpy)
    np.testing.assert_array_equal(lowered(func).interpret(x), func.interpret(x))


def image(x: Any) -> Any:
    """With its channels last, and one more of them."""
    padded = torch.nn.functional.pad(x.permute(0, 2, 3, 1), (0, 1, 1, 2, 3, 1))
    return padded.contiguous(), padded.abs().bfloat16().contiguous()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 40), (1, 2, 7, 16), (2, 3, 3, 600), (1, 5, 1, 31)])
@pytest.mark.parametrize("last", [False, True])
def test_machine_code(shape: tuple[int, ...], dtype: str, last: bool) -> None:
    x = 10 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if dtype != "int8":
        x.view(-1)[:3] = torch.tensor([torch.inf, torch.nan, -0.0])
    x = x.to(getattr(torch, dtype))
    x = x.to(memory_format=torch.channels_last) if last else x
    compiled = stack.compile(image, x, backend="mlir")
    for made, wanted in zip(compiled(x), image(x), strict=True):
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)


def test_programs_of_several_threads() -> None:
    """Each has lines of its own."""
    x = torch.randn(3, 400_000, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        compiled = stack.compile(lambda x: x.t().contiguous(), x, backend="mlir")
        assert all(torch.equal(compiled(x), x.t()) for _ in range(20))
    finally:
        torch.set_num_threads(before)


ACROSS = """func @main(%x: f32[{k}, 20]) -> (f32[20, {k}]) at tensor {{
  %y = kernel(%x) {{level="tile", name="transpose", ops=["transpose"]}} : f32[20, {k}] \
{{(%p0: f32[{k}, 20] in global, %o0: f32[20, {k}] in global)
    %row = iota() {{axis=0}} : i64<20>
    %loop = loop(%o0) {{kind="serial"}} : f32[20, {k}] in global \
{{(%c < {k}, %o_c: f32[20, {k}] in global)
      %t = load(%p0, %c, 0:i64) : f32<20>
      %all = broadcast(%c) {{axes=[]}} : i64<20>
      %store = store(%o_c, %t, %row, %all) : f32[20, {k}] in global
      return %store
    }}
    return %loop
  }}
  return %y
}}
"""


# lines of 80 bytes, kept on the stack: a MiB of them at most
@pytest.mark.parametrize(("elements", "turns"), [(3, True), (13107, True), (13108, False)])
def test_lines_are_no_more_than_a_stack_holds(elements: int, turns: bool) -> None:
    func = parse(ACROSS.format(k=elements))
    made = Pipeline("distribute").run(func, target=load("avx512")).func
    verify(made)
    assert ('name="lines' in str(made)) == turns
