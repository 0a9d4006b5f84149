"""Products of one left operand side by side in one launch: which, and their values."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import assert_exact, floats

from stack.backends.triton.printer import print_kernel
from stack.ir import Func, Node, parse, verify
from stack.ir.node import topological
from stack.passes.policies.products import Products
from stack.passes.tiling.contraction import parts_of
from stack.rewrite import Pipeline
from stack.schedule import schedules_of
from stack.target import as_gpu

TYPES = str.maketrans(
    {"X": "bf16[2048, 4096]", "Q": "bf16[4096, 4096]", "K": "bf16[1024, 4096]",
     "A": "bf16[2048, 4096]", "B": "bf16[2048, 1024]"}
)  # fmt: skip
BEFORE = """func @f(%x: X, %q: Q, %k: K, %v: K) -> (A, B, B) at tensor {
  %a = dot(%x, %q) {rule="m k, n k -> m n"} : A
  %b = dot(%x, %k) {rule="m k, n k -> m n"} : B
  %c = dot(%x, %v) {rule="m k, n k -> m n"} : B
  return %a, %b, %c
}
""".translate(TYPES)
EXPECTED = """func @f(%x: X, %q: Q, %k: K, %v: K) -> (A, B, B) at tensor {
  %fusion = fusion(%x, %q, %k, %v) {kind="gemm", name="dot_and_dot_and_dot"} : (A, B, B) \
{(%p0: X, %p1: Q, %p2: K, %p3: K)
    %dot = dot(%p0, %p1) {rule="m k, n k -> m n"} : A
    %dot_1 = dot(%p0, %p2) {rule="m k, n k -> m n"} : B
    %dot_2 = dot(%p0, %p3) {rule="m k, n k -> m n"} : B
    return %dot, %dot_1, %dot_2
  }
  %a = item(%fusion) {index=0} : A
  %b = item(%fusion) {index=1} : B
  %c = item(%fusion) {index=2} : B
  return %a, %b, %c
}
""".translate(TYPES)


def horizontal(text: str) -> Func:
    made = Pipeline("horizontal_fusion").run(parse(text)).func
    verify(made)
    assert parse(str(made)) is made
    return made


def groups(made: Func) -> list[Node]:
    return [n for n in made.nodes if n.op == "fusion" and parts_of(n.blocks[0])]


def test_before_and_expected() -> None:
    assert str(horizontal(BEFORE)) == EXPECTED
    assert horizontal(EXPECTED) is parse(EXPECTED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%c = dot(%x, %v)", "%y = neg(%x) : X\n  %c = dot(%y, %v)"),
        ("%c = dot(%x, %v)", "%y = cast(%a) : X\n  %c = dot(%y, %v)"),
        ("%c = dot(%x, %v)", "%y = slice(%a) {start=[0, 0], limit=[1024, 4096], step=[1, 1]} : K\n"
         "  %c = dot(%x, %y)"),
    ],
    ids=["another left operand", "of a product", "waits for the first"],
)  # fmt: skip
def test_what_stays_on_its_own(old: str, new: str) -> None:
    text = BEFORE.replace(old, new.translate(TYPES))
    for group in groups(horizontal(text)):
        assert len(parts_of(group.blocks[0])) == 2


def test_two_that_are_put_together_do_not_wait_for_each_other() -> None:
    """b waits for a of one pair, c for d of the other: with both pairs neither could begin."""
    text = """func @f(%x: X, %y: X, %k: K, %l: K) -> (B, B) at tensor {
  %a = dot(%x, %k) {rule="m k, n k -> m n"} : B
  %d = dot(%y, %k) {rule="m k, n k -> m n"} : B
  %s = slice(%a) {start=[0, 0], limit=[1024, 1024], step=[1, 1]} : bf16[1024, 1024]
  %t = slice(%d) {start=[0, 0], limit=[1024, 1024], step=[1, 1]} : bf16[1024, 1024]
  %u = concat(%s, %s, %s, %s) {axis=1} : K
  %w = concat(%t, %t, %t, %t) {axis=1} : K
  %b = dot(%y, %u) {rule="m k, n k -> m n"} : B
  %c = dot(%x, %w) {rule="m k, n k -> m n"} : B
  return %b, %c
}
""".translate(TYPES)
    assert len(groups(horizontal(text))) == 1


def test_large_products_are_faster_one_by_one() -> None:
    """Their programs take turns, so that the end of a tile overlaps the next."""
    text = BEFORE.replace("2048", "16384").replace("1024,", "4096,").replace(", 1024]", ", 4096]")
    (record,) = Pipeline("horizontal_fusion").run(parse(text)).records
    assert not groups(record.after)
    assert "one by one" in record.notes[0]


SMALL = """func @f(%x: T[67, 300], %q: T[130, 300], %k: T[37, 300], %v: T[300, 41], %b: T[41]) \
-> (T[67, 130], T[67, 37], T[67, 41], T[67, 41]) at tensor {
  %a = dot(%x, %q) {rule="m k, n k -> m n"} : T[67, 130]
  %d = dot(%x, %k) {rule="m k, n k -> m n"} : T[67, 37]
  %e = dot(%x, %v) {rule="m k, k n -> m n"} : T[67, 41]
  %s = broadcast(%b) {axes=[1]} : T[67, 41]
  %z = add(%e, %s) : T[67, 41]
  return %a, %d, %z, %e
}
"""


def put(dtype: str, tile: str, text: str = SMALL) -> Func:
    """Three products of primes, the last with a bias, in one group with a tile."""
    text = text.replace("T[", f"{dtype}[")
    made = horizontal(str(Pipeline("fuse").run(parse(text)).func))
    (group,) = groups(made)
    name = f'name="{group.attrs["name"]}"'
    return parse(str(made).replace(name, f'{name}, schedule="{tile}"'))


@pytest.mark.parametrize(
    "tile",
    [
        "m=32@grid n=32@grid k=32@serial warps=4 stages=2",
        "m=16@grid n=64@grid k=128@serial warps=4 stages=2",
        "unfused",
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_values(dtype: str, tile: str, rng: np.random.Generator) -> None:
    source = put(dtype, tile)
    lowered = Pipeline("blocks").run(source).func
    made = [n for n in lowered.nodes if n.op == "kernel"]
    assert len(made) == (3 if tile == "unfused" else 1)
    arrays = [floats(tuple(map(int, p.shape)), dtype, rng) for p in source.params]
    assert_exact(lowered.interpret(*arrays), source, arrays, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_of_one_shape_have_programs_of_their_own(
    dtype: str, rng: np.random.Generator
) -> None:
    """As the queries, keys and values of attention: their results could share loops."""
    text = SMALL.replace("130", "41").replace("37", "41")
    source = put(dtype, "m=32@grid n=32@grid k=32@serial warps=4 stages=2", text)
    lowered = Pipeline("blocks").run(source).func
    (kernel,) = (n for n in lowered.nodes if n.op == "kernel")
    loops = [n for n in kernel.blocks[0].nodes if n.op == "loop" and n.attrs["kind"] == "grid"]
    assert len(loops) == 3
    arrays = [floats(tuple(map(int, p.shape)), dtype, rng) for p in source.params]
    assert_exact(lowered.interpret(*arrays), source, arrays, dtype)


def test_each_has_programs_of_its_own() -> None:
    (group,) = groups(put("bf16", "m=32@grid n=32@grid k=32@serial warps=4 stages=2"))
    source = print_kernel(Products(group, as_gpu(None)).kernel(), "kernel")
    assert source.programs == 3 * 5 + 3 * 2 + 3 * 2
    assert "if pid < 15:" in source.text
    assert "if pid >= 15 and pid < 21:" in source.text
    assert "if pid >= 21:" in source.text
    assert source.text.count("tl.dot(") == 3


def test_apart_stands_among_the_tiles() -> None:
    record = Pipeline("schedule{most=20}").run(parse(EXPECTED)).records[0]
    (group,) = groups(record.after)
    assert schedules_of(group).count("unfused") == 1
    assert not any("persistent" in t or "+" in t for t in schedules_of(group))
    assert "unfused" in record.notes[0]


def test_the_block_of_the_group_holds_nothing_else() -> None:
    (group,) = groups(parse(EXPECTED))
    assert set(topological(group.blocks[0].results)) >= set(group.blocks[0].params)
