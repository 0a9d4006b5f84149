"""Sums over several strided axes, which are one loop."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Block, Func, Node, parse
from stack.rewrite import Pipeline

Shape = tuple[int, ...]
CASES: list[tuple[Shape, Shape]] = [
    ((4, 6, 14, 37, 40), (2, 3)), ((3, 2, 5, 7, 20), (2, 3)), ((2, 30, 40, 33), (1, 2)),
    ((30, 40, 33), (0, 1)), ((8, 9, 10, 24), (0, 1, 2)), ((4, 30, 8, 50, 16), (1, 3)),
]  # fmt: skip


def statistics(shape: Shape, axes: Shape) -> Func:
    """Deviations, their squares' sum, and the largest."""
    kept = [s for i, s in enumerate(shape) if i not in axes]
    return parse(
        f"""func @f(%x: f32{list(shape)}, %y: f32[{shape[-1]}])
    -> (f32{list(shape)}, f32{kept}, f32{kept}) at tensor {{
  %b = broadcast(%y) {{axes=[{len(shape) - 1}]}} : f32{list(shape)}
  %s = sub(%x, %b) : f32{list(shape)}
  %m = mul(%s, %s) : f32{list(shape)}
  %r = reduce(%m) {{axes={list(axes)}, kind="sum"}} : f32{kept}
  %q = reduce(%s) {{axes={list(axes)}, kind="max"}} : f32{kept}
  return %s, %r, %q
}}
""".replace("\n    ->", " ->")
    )


def all_nodes(block: Block) -> list[Node]:
    return [m for n in block.nodes for m in (n, *(i for b in n.blocks for i in all_nodes(b)))]


@pytest.mark.every(3)
@pytest.mark.parametrize("passes", ["fuse", "split_reductions{parts=6},fuse,coalesce"])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_values(shape: Shape, axes: Shape, passes: str, rng: np.random.Generator) -> None:
    func = statistics(shape, axes)
    made = Pipeline(f"{passes},blocks,library").run(func).func
    assert all(n.op in ("kernel", "item", "reshape") for n in made.nodes)
    given = [rng.standard_normal(p.shape).astype(np.float32) for p in func.params]
    for want, got in zip(func.interpret(*given), made.interpret(*given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_tile_holds_pieces_of_lines() -> None:
    """No element of a line is read by itself, and no tile is more than a few thousand elements."""
    func = statistics((8, 4, 14, 112, 64), (2, 3))
    (kernel, *_) = Pipeline("fuse,blocks").run(func).func.nodes
    tiles = [n for n in all_nodes(kernel.blocks[0]) if n.op == "load" and n.tensor.rank > 1]
    assert tiles
    assert all(32 in n.shape and np.prod(n.shape) <= 4096 for n in tiles)
