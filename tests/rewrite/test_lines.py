"""Source lines of statements that passes add."""

from __future__ import annotations

import pytest

from stack.ir import parse
from stack.ir.builder import located
from stack.ir.func import Func
from stack.ir.node import walk
from stack.rewrite import Pipeline
from stack.target import load

TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %a = exp(%x) : f32[4, 8]
  %b = neg(%a) : f32[4, 8] from "m.py:2"
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8]
  %c = mul(%b, %wide) : f32[4, 8] from "m.py:3"
  %d = abs(%c) : f32[4, 8]
  return %d
}
"""
ATTENTION = """\
func @f(%q: f32[128, 64], %k: f32[64, 128], %v: f32[128, 64]) -> (f32[128, 64]) at tensor {
  %s = dot(%q, %k) {rule="a k, k b -> a b"} : f32[128, 128] from "m.py:1"
  %m = reduce(%s) {axes=[1], kind="max"} : f32[128] from "m.py:2"
  %wide = broadcast(%m) {axes=[0]} : f32[128, 128] from "m.py:2"
  %d = sub(%s, %wide) : f32[128, 128] from "m.py:2"
  %e = exp(%d) : f32[128, 128] from "m.py:2"
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[128] from "m.py:2"
  %o = dot(%e, %v) {rule="a k, k b -> a b"} : f32[128, 64] from "m.py:3"
  %below = broadcast(%l) {axes=[0]} : f32[128, 64] from "m.py:3"
  %y = div(%o, %below) : f32[128, 64] from "m.py:3"
  return %y
}
"""


def test_a_node_has_the_lines_of_what_it_serves() -> None:
    block = located(parse(TEXT).body)
    found = {name: block.locs.get(node) for node, name in block.names.items()}
    assert found["a"] == ("m.py:2",)  # its user
    assert found["wide"] == ("m.py:3",)
    assert found["d"] == ("m.py:3",)  # its operand: nothing uses it
    assert located(block) is block
    bare = parse(TEXT.replace(' from "m.py:2"', "").replace(' from "m.py:3"', ""))
    assert located(bare.body) is bare.body


@pytest.mark.parametrize(
    ("passes", "machine"),
    [
        ("stream{loops=cpu}", "avx2"),
        ("stream{loops=cpu},fuse,schedule{loops=cpu},tile", "avx2"),
        ("stream{loops=blocks},fuse,schedule,blocks", "sm_90"),
    ],
)
def test_statements_of_a_flash_kernel_have_lines(passes: str, machine: str) -> None:
    func = Pipeline(passes).run(parse(ATTENTION), target=load(machine)).func
    assert any(n.op in ("stream", "kernel") for n in func.nodes)
    assert _without_lines(func) == []


def _without_lines(func: Func) -> list[str]:
    return [
        block.names[node]
        for block, node in walk(func.body)
        if node in block.names and not block.locs.get(node)
    ]
