"""Regions of pass `stream` that are found again for other sets of held nodes and nodes outside."""

from __future__ import annotations

from stack.ir.builder import param
from stack.ir.node import Block, Node
from stack.ir.types import F32, TensorType
from stack.passes.streaming.graph import Graph
from stack.passes.streaming.region import Region, known_region

A, B, C = (param(name, TensorType(F32, (2,))) for name in "abc")


def sets(*nodes: Node) -> frozenset[Node]:
    return frozenset(nodes)


def region(met: frozenset[Node], outside: frozenset[Node], held: frozenset[Node]) -> Region:
    made = Region(Graph(Block([A, B, C], [A])), 2, outside, held)
    made.met |= met
    return made


def test_sets_that_differ_in_nodes_that_were_not_met() -> None:
    made = region(sets(A, B), sets(), sets(A))
    known = {"start": [made]}
    assert known_region(known, "start", sets(), sets(A)) is made
    assert known_region(known, "start", sets(C), sets(A, C)) is made


def test_other_answers_are_other_regions() -> None:
    held, free = region(sets(A, B), sets(), sets(A)), region(sets(A), sets(), sets())
    known = {"start": [held]}
    assert known_region(known, "start", sets(), sets()) is None
    assert known_region(known, "start", sets(), sets(A, B)) is None
    assert known_region(known, "start", sets(B), sets(A)) is None
    assert known_region(known, "elsewhere", sets(), sets(A)) is None
    known["start"].append(free)
    assert known_region(known, "start", sets(), sets(B)) is free
    assert known_region(known, "start", sets(), sets(A)) is held
