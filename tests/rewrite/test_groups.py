"""Groups never wait for each other: a group with an early and a late member is no way through."""

from __future__ import annotations

import pytest

from stack.ir import Func, Node, parse
from stack.rewrite import Pipeline

# %early and %late would like to be one group; %sorted, which no group takes in, lies between them
THROUGH_A_BARE_OP = """func @main(%x: f32[16, 16]) -> (f32[16, 16]) at tensor {
  %early = exp(%x) : f32[16, 16]
  %sort = sort(%early) {axis=0, descending=false, num_keys=1} : (f32[16, 16])
  %sorted = item(%sort) {index=0} : f32[16, 16]
  %late = add(%early, %sorted) : f32[16, 16]
  return %late
}
"""
# a second group reads the early member and gives to the late one: it is not after all of them,
# though its first member is
THROUGH_A_GROUP = """func @main(%x: f32[16, 16], %y: f32[16]) -> (f32[16, 16], f32[16]) at tensor {
  %a = exp(%x) : f32[16, 16]
  %b = tanh(%y) : f32[16]
  %sort = sort(%a) {axis=0, descending=false, num_keys=1} : (f32[16, 16])
  %sorted = item(%sort) {index=0} : f32[16, 16]
  %sum = reduce(%sorted) {axes=[0], kind="sum"} : f32[16]
  %d = mul(%sum, %b) : f32[16]
  %wide = broadcast(%d) {axes=[1]} : f32[16, 16]
  %late = mul(%a, %wide) : f32[16, 16]
  %e = sub(%b, %d) : f32[16]
  return %late, %e
}
"""


def needs(node: Node) -> set[Node]:
    found: set[Node] = set()
    pending = list(node.args)
    while pending:
        arg = pending.pop()
        if arg not in found:
            found.add(arg)
            pending.extend(arg.args)
    return found


def fused(text: str) -> Func:
    return Pipeline("fuse").run(parse(text), check=True).func


@pytest.mark.parametrize("text", [THROUGH_A_BARE_OP, THROUGH_A_GROUP])
def test_a_detour_keeps_the_ends_apart(text: str) -> None:
    func = fused(text)
    (sort,) = [n for n in func.nodes if n.op == "sort"]
    before = needs(sort)
    groups = [n for n in func.nodes if n.op == "fusion"]
    assert any(g in before for g in groups) or any(n.op == "exp" for n in before)
    for group in groups:
        assert not (group in before and sort in needs(group))
    late = [g for g in groups if sort in needs(g)]
    assert late
