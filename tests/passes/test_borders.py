"""Parts of a concatenation are walked apart on a CPU: between borders no load has a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from distributed import distributed
from executed import agrees, func_of

from stack.ir import Builder, Func, Node, parse, verify
from stack.ir.builder import constant
from stack.ir.types import I64
from stack.rewrite import Pipeline
from stack.run.compile import compile_func
from stack.target import load

STATIC = """func @main(%x: f32[3, 20], %y: f32[3, 80]) -> (f32[3, 100]) at tensor {
  %z = kernel(%x, %y) {level="tile", name="concat", ops=["concat"]} : f32[3, 100] \
{(%p0: f32[3, 20] in global, %p1: f32[3, 80] in global, %o0: f32[3, 100] in global)
    %lane = iota() {axis=0} : i64<100>
    %after = ge(%lane, 20:i64) : bool<100>
    %before = lt(%lane, 20:i64) : bool<100>
    %loop = loop(%o0) {kind="grid"} : f32[3, 100] in global {(%i < 3, %m: f32[3, 100] in global)
      %b = load(%p1, %i, -20:i64, %after, 0.0:f32) : f32<100>
      %a = load(%p0, %i, 0:i64, %before, 0.0:f32) : f32<100>
      %v = select(%after, %b, %a) : f32<100>
      %store = store(%m, %v, %i, 0:i64) : f32[3, 100] in global
      return %store
    }
    return %loop
  }
  return %z
}
"""
MOVING = """func @main(%x: f32[100], %y: f32[156]) -> (f32[256]) at tensor {
  %z = kernel(%x, %y) {level="tile", name="concat", ops=["concat"]} : f32[256] \
{(%p0: f32[100] in global, %p1: f32[156] in global, %o0: f32[256] in global)
    %lane = iota() {axis=0} : i64<64>
    %loop = loop(%o0) {kind="grid"} : f32[256] in global {(%i < 4, %m: f32[256] in global)
      %begin = mul(%i, 64:i64) : i64[]
      %place = add(%begin, %lane) : i64<64>
      %after = ge(%place, 100:i64) : bool<64>
      %past = add(-100:i64, %begin) : i64[]
      %b = load(%p1, %past, %after, 0.0:f32) : f32<64>
      %before = lt(%place, 100:i64) : bool<64>
      %a = load(%p0, %begin, %before, 0.0:f32) : f32<64>
      %v = select(%after, %b, %a) : f32<64>
      %store = store(%m, %v, %begin) : f32[256] in global
      return %store
    }
    return %loop
  }
  return %z
}
"""
STATIC_EXPECTED = """func @main(%x: f32[3, 20], %y: f32[3, 80]) -> (f32[3, 100]) at tensor {
  %z = kernel(%x, %y) {level="loop", name="concat", ops=["concat"]} : f32[3, 100] \
{(%p0: f32[3, 20] in global, %p1: f32[3, 80] in global, %o0: f32[3, 100] in global)
    %add = add(-20:i64, 84:i64) : i64[]
    %loop = loop(%o0) {kind="parallel"} : f32[3, 100] in global \
{(%i < 3, %m: f32[3, 100] in global)
      %a = load(%p0, %i, 0:i64) : f32<20>
      %store = store(%m, %a, %i, 0:i64) : f32[3, 100] in global
      %loop_1 = loop(%store) {kind="serial"} : f32[3, 100] in global \
{(%c__1 < 2, %m__2: f32[3, 100] in global)
        %mul = mul(%c__1, 32:i64) : i64[]
        %add_1 = add(%mul, 20:i64) : i64[]
        %add_2 = add(-20:i64, %add_1) : i64[]
        %b_1 = load(%p1, %i, %add_2) : f32<32>
        %store_2 = store(%m__2, %b_1, %i, %add_1) : f32[3, 100] in global
        return %store_2
      }
      %b = load(%p1, %i, %add) : f32<16>
      %store_1 = store(%loop_1, %b, %i, 84:i64) : f32[3, 100] in global
      return %store_1
    }
    return %loop
  }
  return %z
}
"""
MOVING_EXPECTED = """func @main(%x: f32[100], %y: f32[156]) -> (f32[256]) at tensor {
  %z = kernel(%x, %y) {level="loop", name="concat", ops=["concat"]} : f32[256] \
{(%p0: f32[100] in global, %p1: f32[156] in global, %o0: f32[256] in global)
    %iota = iota() {axis=0} : i64<32>
    %loop = loop(%o0) {kind="parallel"} : f32[256] in global {(%i < 4, %m: f32[256] in global)
      %mul = mul(%i, -64:i64) : i64[]
      %add = add(100:i64, %mul) : i64[]
      %max = max(%add, 0:i64) : i64[]
      %min = min(%max, 64:i64) : i64[]
      %add_1 = add(%min, 31:i64) : i64[]
      %div = div(%add_1, 32:i64) : i64[]
      %div_1 = div(%min, 32:i64) : i64[]
      %begin = mul(%i, 64:i64) : i64[]
      %loop_1 = loop(0:i64, %div_1, %m) {kind="serial", limited=true} \
: f32[256] in global {(%c__1 < 2, %m__2: f32[256] in global)
        %mul_1 = mul(%c__1, 32:i64) : i64[]
        %add_2 = add(%begin, %mul_1) : i64[]
        %a = load(%p0, %add_2) : f32<32>
        %store = store(%m__2, %a, %add_2) : f32[256] in global
        return %store
      }
      %past = add(-100:i64, %begin) : i64[]
      %loop_2 = loop(%div_1, %div, %loop_1) {kind="serial", limited=true} \
: f32[256] in global {(%c__3 < 2, %m__4: f32[256] in global)
        %mul_2 = mul(%c__3, 32:i64) : i64[]
        %lane = add(%iota, %mul_2) : i64<32>
        %place = add(%begin, %lane) : i64<32>
        %after = ge(%place, 100:i64) : bool<32>
        %add_3 = add(%past, %mul_2) : i64[]
        %b = load(%p1, %add_3, %after, 0.0:f32) : f32<32>
        %add_4 = add(%begin, %mul_2) : i64[]
        %before = lt(%place, 100:i64) : bool<32>
        %a_1 = load(%p0, %add_4, %before, 0.0:f32) : f32<32>
        %v = select(%after, %b, %a_1) : f32<32>
        %store_1 = store(%m__4, %v, %add_4) : f32[256] in global
        return %store_1
      }
      %loop_3 = loop(%div, 2:i64, %loop_2) {kind="serial", limited=true} \
: f32[256] in global {(%c__5 < 2, %m__6: f32[256] in global)
        %mul_3 = mul(%c__5, 32:i64) : i64[]
        %add_5 = add(%past, %mul_3) : i64[]
        %b_1 = load(%p1, %add_5) : f32<32>
        %add_6 = add(%begin, %mul_3) : i64[]
        %store_2 = store(%m__6, %b_1, %add_6) : f32[256] in global
        return %store_2
      }
      return %loop_3
    }
    return %loop
  }
  return %z
}
"""


@pytest.mark.parametrize("before, expected", [(STATIC, STATIC_EXPECTED), (MOVING, MOVING_EXPECTED)])
def test_text(before: str, expected: str) -> None:
    assert str(distributed(before, load("avx2"))) == str(parse(expected))


UNIFORM = """func @main(%x: f32[2, 9], %y: f32[3, 9]) -> (f32[5, 9]) at tensor {
  %z = kernel(%x, %y) {level="tile", name="concat", ops=["concat"]} : f32[5, 9] \
{(%p0: f32[2, 9] in global, %p1: f32[3, 9] in global, %o0: f32[5, 9] in global)
    %loop = loop(%o0) {kind="grid"} : f32[5, 9] in global {(%i < 5, %m: f32[5, 9] in global)
      %after = ge(%i, 2:i64) : bool[]
      %second = broadcast(%after) {axes=[]} : bool<9>
      %row = add(%i, -2:i64) : i64[]
      %b = load(%p1, %row, 0:i64, %second, 0.0:f32) : f32<9>
      %before = lt(%i, 2:i64) : bool[]
      %first = broadcast(%before) {axes=[]} : bool<9>
      %a = load(%p0, %i, 0:i64, %first, 0.0:f32) : f32<9>
      %v = select(%second, %b, %a) : f32<9>
      %store = store(%m, %v, %i, 0:i64) : f32[5, 9] in global
      return %store
    }
    return %loop
  }
  return %z
}
"""
UNIFORM_EXPECTED = """func @main(%x: f32[2, 9], %y: f32[3, 9]) -> (f32[5, 9]) at tensor {
  %z = kernel(%x, %y) {level="loop", name="concat", ops=["concat"]} : f32[5, 9] \
{(%p0: f32[2, 9] in global, %p1: f32[3, 9] in global, %o0: f32[5, 9] in global)
    %loop = loop(%o0) {kind="parallel"} : f32[5, 9] in global {(%i < 5, %m: f32[5, 9] in global)
      %ge = ge(%i, 2:i64) : bool[]
      %select = select(%ge, 1:i64, 0:i64) : i64[]
      %lt = lt(%i, 2:i64) : bool[]
      %select_1 = select(%lt, 1:i64, 0:i64) : i64[]
      %loop_1 = loop(0:i64, %select_1, %m) {kind="serial", limited=true} : f32[5, 9] in global \
{(%once__2 < 1, %m__1: f32[5, 9] in global)
        %a = load(%p0, %i, %once__2) : f32<9>
        %store = store(%m__1, %a, %i, %once__2) : f32[5, 9] in global
        return %store
      }
      %row = add(%i, -2:i64) : i64[]
      %loop_2 = loop(0:i64, %select, %loop_1) {kind="serial", limited=true} : f32[5, 9] in global \
{(%once__4 < 1, %m__3: f32[5, 9] in global)
        %b = load(%p1, %row, %once__4) : f32<9>
        %store_1 = store(%m__3, %b, %i, %once__4) : f32[5, 9] in global
        return %store_1
      }
      return %loop_2
    }
    return %loop
  }
  return %z
}
"""


def test_guards_alike_on_all_lanes_are_cases() -> None:
    assert str(distributed(UNIFORM, load("avx2"))) == str(parse(UNIFORM_EXPECTED))


def test_what_does_not_move_with_lanes_keeps_its_guard() -> None:
    """It is read before the loop of its case, whichever case that is."""
    scalar = UNIFORM.replace("0:i64, %second, 0.0:f32) : f32<9>", "0:i64, %after, 0.0:f32) : f32[]")
    scalar = scalar.replace("select(%second, %b, %a)", "select(%second, %wide, %a)")
    scalar = scalar.replace(
        "      %v =", "      %wide = broadcast(%b) {axes=[]} : f32<9>\n      %v ="
    )
    text = str(distributed(scalar, load("avx2")))
    assert masks(text) == 0
    assert text.count("0.0:f32) : f32[]") == 1


def masks(text: str) -> int:
    """Loads that have one."""
    return text.count(", 0.0:f32) : f32<")


def test_borders_between_whole_chunks_leave_no_mask() -> None:
    even = MOVING.replace("100", "96").replace("156", "160")
    assert masks(str(distributed(even, load("avx2")))) == 0
    assert masks(str(distributed(MOVING, load("avx2")))) == 2  # one chunk has both


@pytest.mark.parametrize(
    "old, new",
    [
        ("ge(%lane, 20:i64)", "eq(%lane, 20:i64)"),  # turns twice
        ("ge(%lane, 20:i64)", "ge(%twice, 20:i64)"),  # not at one lane
    ],
)
def test_what_turns_at_no_border_stays_a_mask(old: str, new: str) -> None:
    twice = "%twice = add(%lane, %lane) : i64<100>\n    %after"
    assert masks(str(distributed(STATIC.replace("%after", twice, 1).replace(old, new)))) > 0


def test_where_no_part_fills_a_register_all_lanes_are_one_chunk() -> None:
    few = STATIC.replace("100", "12").replace("80", "7").replace("20", "5")
    assert masks(str(distributed(few, load("avx2")))) == 2
    one_more = STATIC.replace("100", "13").replace("80", "8").replace("20", "5")
    assert masks(str(distributed(one_more, load("avx2")))) == 0


def test_choices_that_guard_no_load_are_not_taken_apart() -> None:
    def build(b: Builder, x: Node) -> Node:
        places = b.iota(axis=0, type=x.tensor.with_dtype(I64))
        return b.select(b.lt(places, 20), b.exp(x), x)

    made = str(lowered(func_of(build, [("f32", 200)])))
    assert "select(" in made
    assert "start" not in made and "limited" not in made


def test_code_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has all of the work once more."""
    monkeypatch.setattr("stack.passes.cpu_loops.borders.MOST_NODES", 2)
    # two in chunks, and in what is left of them
    assert masks(str(distributed(STATIC, load("avx2")))) == 4


def lowered(func: Func) -> Func:
    made = Pipeline("fuse,coalesce,tile,distribute").run(func, target=load("avx2")).func
    verify(made)
    return made


def joined(dtype: str, axis: int, sizes: Sequence[int], shape: tuple[int, ...]) -> Func:
    specs = [(dtype, *shape[:axis], size, *shape[axis:]) for size in sizes]
    return func_of(lambda b, *parts: b.concat(*parts, axis=axis), specs)


def drawn(func: Func, rng: np.random.Generator) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for p in func.params:
        most = 2 if p.dtype.kind == "b" else 99
        found.append(rng.integers(0, most, p.tensor.shape).astype(p.dtype.numpy))
    return found


JOINED: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "first axis": (0, (300, 41, 1, 0, 219), (65,)),
    "of whole chunks": (0, (256, 512), (64,)),
    "parts shorter than a chunk": (0, (9000, 3, 7, 30, 9001), ()),
    "a length that no block divides": (0, (12289, 8192), ()),
    "last axis": (1, (96, 160), (7,)),
    "last axis, odd": (1, (1, 33, 2, 67), (5,)),
    "few lanes": (1, (3, 5), (40,)),
    "channels": (1, (5, 3), (2, 61, 61)),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8", "bool", "i64"])
@pytest.mark.parametrize("name", JOINED)
def test_values(name: str, dtype: str, rng: np.random.Generator) -> None:
    pytest.importorskip("torch_mlir")
    func = joined(dtype, *JOINED[name])
    agrees(compile_func(func, "mlir", options={"cache": False}), func, drawn(func, rng), 0)


@pytest.mark.parametrize("name", JOINED)
def test_values_of_the_loop_level(name: str, rng: np.random.Generator) -> None:
    func = joined("f32", *JOINED[name])
    args = drawn(func, rng)
    np.testing.assert_array_equal(lowered(func).interpret(*args), func.interpret(*args))


def merged(b: Builder, x: Node) -> Node:
    """Four places of a picture as one, as Swin merges patches."""
    rows, columns, channels = map(int, x.shape)  # pyright: ignore[reportArgumentType]
    return b.concat(
        *(
            b.slice(x, start=(i, j, 0), limit=(rows, columns, channels), step=(2, 2, 1))
            for j in (0, 1)
            for i in (0, 1)
        ),
        axis=2,
    )


def turned_halves(b: Builder, x: Node) -> Node:
    """As rotary embeddings do: the second half, negative, before the first; then scaled."""
    rows, width = map(int, x.shape)  # pyright: ignore[reportArgumentType]
    first = b.slice(x, start=(0, 0), limit=(rows, width // 2), step=(1, 1))
    second = b.slice(x, start=(0, width // 2), limit=(rows, width), step=(1, 1))
    return b.mul(b.concat(b.neg(second), first, axis=1), x)


def padded(b: Builder, x: Node) -> Node:
    return b.pad(x, constant(7, x.dtype), low=(1, 2), high=(2, 1), interior=(0, 0))


def summed(b: Builder, x: Node) -> Node:
    """A reduction along the lanes has guards too, and one over rows has them in a loop."""
    both = b.concat(x, b.exp(x), axis=1)
    return b.add(
        b.broadcast(b.reduce(both, kind="sum", axes=(0,)), axes=(1,), type=both.type),
        b.broadcast(b.reduce(both, kind="max", axes=(1,)), axes=(0,), type=both.type),
    )


def around(b: Builder, x: Node) -> Node:
    """More rows on both sides of transposed ones, then more lanes."""
    y = b.transpose(x, perm=(1, 0, 2))
    lanes = x.shape[2]
    first = b.slice(y, start=(0, 1, 0), limit=(3, 2, lanes), step=(1, 1, 1))
    z = b.concat(first, y, b.exp(first), axis=1)
    return b.concat(b.reverse(z, axes=(2,)), z, axis=2)


def numbers(b: Builder, x: Node) -> Node:
    """Along lanes all are the same: they are loaded as scalars, under guards."""
    both = b.concat(x, b.neg(x), axis=0)
    return b.broadcast(both, axes=(0,), type=both.tensor.with_shape((10, 70)))


PROGRAMS: dict[str, tuple[Callable[[Builder, Node], Node], tuple[int, ...]]] = {
    "merged patches": (merged, (6, 10, 48)),
    "turned halves": (turned_halves, (9, 66)),
    "padded": (padded, (9, 75)),
    "padded, long": (padded, (3, 20000)),
    "summed": (summed, (9, 75)),
    "rows around rows": (around, (4, 3, 70)),
    "a number for each row": (numbers, (5,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_programs(name: str, rng: np.random.Generator) -> None:
    pytest.importorskip("torch_mlir")
    build, shape = PROGRAMS[name]
    func = func_of(build, [("f32", *shape)])
    x = rng.normal(size=shape).astype(np.float32)
    x.reshape(-1)[:5] = np.inf, -np.inf, np.nan, -0.0, 0.0
    near = 1e-6 if name in ("summed", "rows around rows") else 0
    if near:
        x = np.nan_to_num(x, posinf=1, neginf=1)
    agrees(compile_func(func, "mlir", options={"cache": False}), func, [x], near)
    np.testing.assert_allclose(lowered(func).interpret(x), func.interpret(x), rtol=near)
