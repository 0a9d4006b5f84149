"""Walks of pass `stream` that are found again for other sets of held nodes and nodes outside."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import param
from stack.ir.node import Node
from stack.ir.types import F32, TensorType
from stack.passes.streaming.graph import Walks


@dataclass(frozen=True)
class Walk:
    met: frozenset[Node]


A, B, C = (param(name, TensorType(F32, (2,))) for name in "abc")


def sets(*nodes: Node) -> frozenset[Node]:
    return frozenset(nodes)


def test_sets_that_differ_in_nodes_that_were_not_met() -> None:
    walks, walk = Walks[Walk](), Walk(sets(A, B))
    walks.keep("start", sets(A), sets(), walk)
    assert walks.find("start", sets(A), sets()) is walk
    assert walks.find("start", sets(A, C), sets(C)) is walk


def test_other_answers_are_other_walks() -> None:
    walks, held, free = Walks[Walk](), Walk(sets(A, B)), Walk(sets(A))
    walks.keep("start", sets(A), sets(), held)
    assert walks.find("start", sets(), sets()) is None
    assert walks.find("start", sets(A, B), sets()) is None
    assert walks.find("start", sets(A), sets(B)) is None
    assert walks.find("elsewhere", sets(A), sets()) is None
    walks.keep("start", sets(), sets(), free)
    assert walks.find("start", sets(B), sets()) is free
    assert walks.find("start", sets(A), sets()) is held
