"""Collectives in flight: which are complete when one is, and what memory their operands take."""

from __future__ import annotations

import pytest

from stack.ir import Func, parse
from stack.ir.node import Node
from stack.mesh.meshes import parse_mesh
from stack.sim import Cluster, Link, simulate
from stack.sim.flights import Flights

PLAIN = Cluster("plain", "", 1e12, 1e12, 1e12, 1e9, 1.0, 0.0, (Link(1e-6, 1e-9),))
MESH = 'mesh="dp=4, tp=2"'
MEETINGS = f"""func @f(%x: f32[8, 4]) -> (f32[2, 4], f32[8, 4], f32[32, 4], f32[8, 4]) at tensor {{
  %s = reduce_scatter(%x) {{axis=0, kind="sum", {MESH}, over="dp"}} : f32[2, 4]
  %r = all_reduce(%x) {{kind="sum", {MESH}, over="tp"}} : f32[8, 4]
  %g = all_gather(%x) {{axis=0, {MESH}, over="dp"}} : f32[32, 4]
  %p = permute(%x) {{mesh="dp=4, tp=2", order=[1, 0, 3, 2, 5, 4, 7, 6]}} : f32[8, 4]
  return %s, %r, %g, %p
}}"""


@pytest.fixture
def nodes() -> dict[str, Node]:
    func = parse(MEETINGS)
    return {func.body.names[n]: n for n in func.nodes}


def test_those_before_one_of_a_group_are_complete_with_it(nodes: dict[str, Node]) -> None:
    started = Flights()
    for node in nodes.values():
        started.start(node)
    assert started.land(nodes["g"]) == [nodes["s"], nodes["g"]]
    assert started.land(nodes["s"]) == []


def test_other_groups_are_not(nodes: dict[str, Node]) -> None:
    started = Flights()
    for name in "rsp":
        started.start(nodes[name])
    assert started.land(nodes["p"]) == [nodes["p"]]
    assert started.land(nodes["s"]) == [nodes["s"]]
    assert list(started.operands()) == []  # an all-reduce works in place
    assert started.land(nodes["r"].args[0]) == []


def scattered(read: str) -> Func:
    """A large product is scattered; then two more products, the first of `read`."""
    return parse(f"""func @f(%x: f32[512, 512], %v: f32[8, 512]) -> (
    f32[128, 512], f32[512, 512], f32[512, 512]) at tensor {{
  %y = dot(%x, %x) {{rule="m k, k n -> m n"}} : f32[512, 512]
  %s = reduce_scatter(%y) {{axis=0, kind="sum", mesh="dp=4", over="dp"}} : f32[128, 512]
  %g = all_gather(%v) {{axis=0, mesh="dp=4", over="dp"}} : f32[32, 512]
  %a = dot(%{read}, %{read}) {{rule="k m, k n -> m n"}} : f32[512, 512]
  %b = dot(%a, %a) {{rule="m k, k n -> m n"}} : f32[512, 512]
  return %s, %a, %b
}}""")


@pytest.mark.parametrize(("read", "held"), [("v", 1), ("g", 0)])
def test_an_operand_in_flight_is_held(read: str, held: int) -> None:
    """Until a later result of the group is read, which only the second program does."""
    found = simulate(scattered(read), parse_mesh("dp=4"), PLAIN, bucket=1)
    product, few, wide = 512 * 512 * 4, 8 * 512 * 4, 32 * 512 * 4
    rest = product // 4 + few + (wide if read == "g" else 0)
    assert found.memory[-1][1] <= 3 * product + held * product + rest
    assert found.memory[-1][1] >= 3 * product + held * product
