"""The drawing of a graph: no overlaps, arrows go down, equal layers are drawn once."""

from __future__ import annotations

from itertools import combinations

import stack
from stack.ir import Func
from stack.report.graph import collapsed, graph_of
from stack.report.graph_layout import layout

HEAD = "func @f(%x: f32[8, 8], %w: f32[8, 8]) -> (f32[8, 8]) at tensor {\n"


def layers(count: int) -> Func:
    lines, last = [], "%x"
    for i in range(count):
        lines.append(f'  %p{i} = dot({last}, %w) {{rule="m k, k n -> m n"}} : f32[8, 8]')
        lines.append(f"  %t{i} = tanh(%p{i}) : f32[8, 8]")
        lines.append(f"  %a{i} = add(%t{i}, {last}) : f32[8, 8]")
        last = f"%a{i}"
    lines.append(f"  %end = neg({last}) : f32[8, 8]")
    return stack.parse(HEAD + "\n".join(lines) + "\n  return %end\n}")


def test_equal_layers_stand_once() -> None:
    graph = collapsed(graph_of(layers(12)))
    assert [b.kind for b in graph.boxes] == ["dot", "tanh", "add", "neg"]
    assert [b.repeats for b in graph.boxes] == [12, 12, 12, 1]
    assert graph.arrows == ((0, 1), (1, 2), (2, 3))


def test_different_layers_stay() -> None:
    func = stack.parse(
        HEAD + "  %a = tanh(%x) : f32[8, 8]\n  %b = exp(%a) : f32[8, 8]\n"
        "  %c = tanh(%b) : f32[8, 8]\n  %d = neg(%c) : f32[8, 8]\n  return %d\n}"
    )
    assert collapsed(graph_of(func)) == graph_of(func)


def test_boxes_lie_apart_and_arrows_go_down() -> None:
    func = stack.parse(
        HEAD + "  %a = tanh(%x) : f32[8, 8]\n  %b = exp(%a) : f32[8, 8]\n"
        "  %c = neg(%a) : f32[8, 8]\n  %d = abs(%a) : f32[8, 8]\n"
        "  %e = add(%b, %c) : f32[8, 8]\n  %f = mul(%e, %d) : f32[8, 8]\n"
        "  %g = sub(%f, %a) : f32[8, 8]\n  return %g\n}"
    )
    found = layout(graph_of(func))
    for p, q in combinations(found.boxes, 2):
        beside = p.x + p.width <= q.x or q.x + q.width <= p.x
        assert beside or p.y + p.height <= q.y or q.y + q.height <= p.y, (p.box.name, q.box.name)
    for points in found.arrows:
        assert [y for _, y in points] == sorted(y for _, y in points)
    assert all(p.x >= 0 and p.x + p.width <= found.width for p in found.boxes)
