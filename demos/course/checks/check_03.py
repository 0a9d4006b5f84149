from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import stack
from stack.ir import Func
from stack.rewrite import Pass, Pipeline
from stack.rewrite.fusion import Grouping, Limits
from stack.rewrite.outline import outline


def _softmax(x):
    return torch.softmax(torch.tanh(x) * 2, -1) + x


@dataclass(frozen=True)
class _Fuse(Pass):
    """Groups by the student's rule."""

    name: ClassVar[str] = "students-fuse"
    rule: Any = None

    def run(self, func, log):
        groups = Grouping(func.body, [self.rule], log, Limits(8), frozenset({"reduce"}))
        groups.run(0)
        return Func(func.name, outline(groups), func.level)


def _fused(student: Any) -> Func:
    func = Pipeline("canonicalize").run(stack.trace(_softmax, torch.randn(4, 16))).func
    return Pipeline([_Fuse(student.OneReduction())]).run(func, check=True).func


def check_rule(student: Any) -> None:
    """no kernel of OneReduction has two reductions, and the program means the same"""
    groups = [n for n in _fused(student).nodes if n.op == "fusion"]
    assert groups, "nothing was fused"
    for group in groups:
        assert [n.op for n in group.blocks[0].nodes].count("reduce") <= 1


def check_win(student: Any) -> None:
    """softmax of a chain takes no more than four kernels"""
    found = sum(n.op != "const" for n in _fused(student).nodes)
    assert found <= 4, f"{found} kernels"


def check_profit(student: Any) -> None:
    """profitable weighs computing again against the way through memory"""
    assert student.profitable(1e6, 4e6, 2, 1e12, 1e11)
    assert not student.profitable(1e9, 4e3, 3, 1e12, 1e11)
    assert student.profitable(1e12, 8, 1, 1e12, 1e11), "one reader never pays for memory"
