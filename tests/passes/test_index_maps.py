"""Index maps of the values of a group: one index for each, or none."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import parse
from stack.ir.dim import symbol
from stack.ir.node import Block, Node
from stack.passes.positions.index_maps import index_maps_of
from stack.rewrite import Pipeline


def group(lines: str) -> tuple[Block, dict[str, Node]]:
    """The body of a function whose result, or each of them, is named in the last line."""
    func = parse(f"func @f{lines}")
    named = {str(p.attrs["name"]): p for p in func.params}
    return func.body, named | {name: node for node, name in func.body.names.items()}


def placed(lines: str, root: str) -> dict[str, str]:
    body, named = group(lines)
    node = named[root]
    # pyright: ignore
    iter_vars = tuple(symbol(x, 0, int(s) - 1) for x, s in zip("abc", node.tensor.shape))
    found = index_maps_of(body, node, iter_vars)
    return {name: ", ".join(map(str, found[n])) for name, n in named.items() if n in found}


PICKED = """(%t: f32[7, 4], %i: i32[2, 5]) -> (i32[2, 5], f32[7, 4], f32[5, 2]) at tensor {
  %j = neg(%i) : i32[2, 5]
  %w = exp(%t) : f32[7, 4]
  %g = gather(%w, %j) {rule="v! d, b s -> s b d"} : f32[5, 2, 4]
  %r = reduce(%g) {axes=[2], kind="sum"} : f32[5, 2]
  return %j, %w, %r
}
"""


def test_an_index_sits_at_axes_of_what_is_picked_and_a_table_nowhere() -> None:
    found = placed(PICKED, "g")
    assert found["g"] == "a, b, c"
    assert found["j"] == found["i"] == "b, a"
    assert found["r"] == "a, b"
    assert "w" not in found
    assert "t" not in found


TABLE_APART = PICKED.replace("i32[2, 5], f32[7, 4], f32", "i32[2, 5], f32").replace("%j, %w", "%j")
SLICED = """(%x: f32[10, 4]) -> (f32[10, 4], f32[3]) at tensor {
  %y = mul(%x, 2.0:f32) : f32[10, 4]
  %s = slice(%y) {limit=[5, 4], start=[2, 0], step=[1, 1]} : f32[3, 4]
  %r = reduce(%s) {axes=[1], kind="sum"} : f32[3]
  return %y, %r
}
"""


def test_a_result_behind_a_slice_has_no_place() -> None:
    found = placed(SLICED, "s")
    assert found["r"] == "a"
    assert found["x"] == "a + 2, b"
    assert "y" not in found


WHOLE_TOO = """(%x: f32[10, 4]) -> (f32[10, 4], f32[10, 4]) at tensor {
  %y = mul(%x, 2.0:f32) : f32[10, 4]
  %s = slice(%y) {limit=[1, 4], start=[0, 0], step=[1, 1]} : f32[1, 4]
  %f = reshape(%s) : f32[4]
  %b = broadcast(%f) {axes=[1]} : f32[10, 4]
  %z = add(%b, %y) : f32[10, 4]
  return %y, %z
}
"""


def test_one_that_is_also_reached_as_a_whole_has_that_place() -> None:
    assert placed(WHOLE_TOO, "z")["y"] == "a, b"


@pytest.mark.parametrize("name", ["blocks", "tile"])
@pytest.mark.parametrize(
    ("lines", "is_kernel"),
    [(PICKED, False), (TABLE_APART, True), (SLICED, False), (WHOLE_TOO, True)],
)
def test_a_group_whose_results_have_no_common_place_is_no_kernel(
    name: str, lines: str, is_kernel: bool, rng: np.random.Generator
) -> None:
    """It becomes kernels of smaller groups."""
    body, _ = group(lines)
    types = ", ".join(f"%{p.attrs['name']}: {p.type}" for p in body.params)
    results = [str(r.type) for r in body.results]
    args = ", ".join(f"%{p.attrs['name']}" for p in body.params)
    inner = lines[lines.index("{\n") + 2 : lines.rindex("}")].replace("\n", "\n  ")
    items = "\n".join(f"  %o{i} = item(%k) {{index={i}}} : {t}" for i, t in enumerate(results))
    func = parse(
        f"func @f({types}) -> ({', '.join(results)}) at tensor {{\n"
        f'  %k = fusion({args}) {{kind="loop", name="k"}} : ({", ".join(results)}) {{({types})\n'
        f"  {inner}}}\n{items}\n"
        f"  return {', '.join(f'%o{i}' for i in range(len(results)))}\n}}\n"
    )
    changed = Pipeline(name).run(func).func
    made = [n.op for n in changed.nodes if n.op != "item"]
    if is_kernel:
        assert made == ["kernel"]
    else:
        assert set(made) == {"kernel"}
        assert len(made) > 1
    arrays = [
        rng.normal(size=p.tensor.shape).astype(np.float32)  # pyright: ignore
        if p.dtype.kind == "f"
        else rng.integers(-6, 1, size=p.tensor.shape).astype(np.int32)  # pyright: ignore
        for p in func.params
    ]
    for got, want in zip(changed.interpret(*arrays), func.interpret(*arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
