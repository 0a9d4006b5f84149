"""Prefetch of the next chunk by tiles of rows: all of its panel; nothing after the last one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernel_cases import program, tile_group

from stack.ir import Builder, Node, param, tensor
from stack.ir.builder import constant
from stack.ir.node import Block, walk
from stack.ir.types import F32, I64, TensorType
from stack.passes.distribute import distribute_kernel
from stack.passes.steps.loops import along
from stack.passes.steps.panels import slice_of
from stack.passes.tiling.single_ops import alone
from stack.target import as_cpu, load

Shape = tuple[int, ...]
CPU = as_cpu(load("avx512"))


def dot_of(rule: str, first: Shape, second: Shape) -> Node:
    operands = [param(f"x{i}", tensor("f32", *s)) for i, s in enumerate((first, second))]
    return Builder().dot(*operands, rule=rule)


def prepacked(group: Node) -> Node:
    """The kernel of a group whose second operand is a weight, which another kernel packs."""
    weight = group.args[1]
    call = Builder().call(weight, name="w", once=True, blocks=(Block((weight,), (weight,)),))
    return tile_group(group.rebuilt((group.args[0], call)), CPU)


def fetches(kernel: Node) -> list[Node]:
    return [n for _, n in walk(kernel.blocks[0]) if n.op == "fetch"]


@pytest.mark.parametrize(
    ("rule", "first", "second", "count"),
    [
        ("m k, k n -> m n", (50, 32), (32, 128), 1),
        ("m k, n k -> m n", (50, 32), (128, 32), 1),
        ("b s k, k n -> b s n", (2, 24, 8), (8, 128), 1),
        ("m k, k n -> m n", (50, 32), (32, 64), 0),  # one panel, read in place
        ("m k, n k -> m n", (50, 32), (64, 32), 0),  # one, which is packed
        ("m k, k n -> m n", (4, 32), (32, 256), 0),  # few rows read memory in place
        ("m k, k n -> m n", (50, 100_000), (100_000, 128), 1),  # the next block
    ],
)
def test_a_panel_that_follows_is_fetched(
    rule: str, first: Shape, second: Shape, count: int
) -> None:
    made = distribute_kernel(tile_group(alone(dot_of(rule, first, second)), CPU))
    assert len(fetches(made)) == count


def test_packed_panels_are_fetched_from_where_they_are() -> None:
    (fetch,) = fetches(prepacked(alone(dot_of("m k, n k -> m n", (50, 32), (128, 32)))))
    now, later = fetch.args
    assert now.args[0] is later.args[0]
    assert now.args[0].shape == (2, 32, 64)


def test_what_is_fetched_changes_no_result(rng: np.random.Generator) -> None:
    kernel = tile_group(alone(dot_of("m k, n k -> m n", (50, 32), (130, 32))), CPU)
    func = program(distribute_kernel(kernel))
    assert re.search(r"= fetch\(", str(func))
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((50, 32), (130, 32)))
    want = x.astype(np.float64) @ w.astype(np.float64).T
    np.testing.assert_allclose(func.interpret(x, w), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("turns", [(1,), (3,), (7,), (2, 3), (40,)])
@pytest.mark.parametrize("shape", [(1, 12, 4), (30, 4), (1, 1), (5, 2, 2)])
def test_turns_fetch_all_of_a_block(shape: Shape, turns: Shape) -> None:
    memory = param("x", TensorType(F32, shape, "global"))
    b, zero = Builder(), constant(0, I64)
    block = b.load(memory, *[zero] * len(shape), type=TensorType(F32, shape, "tile"))
    indices = [along(f"t{i}", n, constant(0, I64)) for i, n in enumerate(turns)]
    part = slice_of(b, block, indices)
    seen = np.zeros(shape, bool)
    for turn in np.ndindex(*turns):
        start = [_number(i, dict(zip(indices, turn, strict=True))) for i in part.args[1:]]
        cut = tuple(slice(s, s + int(n)) for s, n in zip(start, part.shape, strict=True))
        assert seen[cut].shape == part.shape
        seen[cut] = True
    assert seen.all()


def _number(node: Node, at: dict[Node, int]) -> int:
    """The value of an index for given values of variables."""
    if node in at:
        return at[node]
    if node.op == "const":
        return int(node.attrs["value"].array)
    args = [_number(arg, at) for arg in node.args]
    if node.op == "select":
        return args[1] if args[0] else args[2]
    x, y = args
    return {"add": x + y, "mul": x * y, "min": min(x, y), "eq": int(x == y)}[node.op]


@pytest.mark.parametrize(("panels", "rows"), [(1, 64), (2, 64), (3, 64), (4, 640)])
def test_blocks_of_panels_fetch_what_follows(panels: int, rows: int) -> None:
    """The next block, and after the last one the first of the next panel, which may be the same."""
    made = prepacked(alone(dot_of("m k, n k -> m n", (rows, 3072), (64 * panels, 3072))))
    (fetch,) = fetches(made)
    now, later = fetch.args
    size = int(now.shape[0])
    count = 3072 // size
    assert count > 1
    loops = [n for _, n in walk(made.blocks[0]) if n.op == "loop"]
    (block,) = (v for n in loops for v in n.blocks[0].params if v.attrs["name"] == "block")
    which = [v for v in now.args[1].vars if v is not block] if panels > 1 else []
    turns = {v: 0 for v in later.vars if v is not block}
    for panel in range(panels):
        for number in range(count):
            at = {**turns, **dict.fromkeys(which, panel), block: number}
            follows = min(panel * count + number + 1, panels * count - 1)
            if number == count - 1 and panel == panels - 1:
                follows = panel * count
            *found, start, lane = [_number(i, at) for i in later.args[1:]]
            assert (found[-1], start, lane) == (follows % count, 0, 0)
            assert not which or found[0] == follows // count
