from __future__ import annotations

from functools import cache
from typing import Any

import torch

import stack


def _layer(x, w, b):
    return torch.softmax(x @ w + b, dim=-1)


def _chain(x):
    return torch.tanh(x * 2 + 1).sum(-1)


@cache
def _runs() -> tuple[Any, ...]:
    layer = stack.compile(_layer, torch.randn(8, 16), torch.randn(16, 16), torch.randn(16))
    return layer.run, stack.compile(_chain, torch.randn(8, 16)).run


def check_first_stage(student: Any) -> None:
    """first_stage_with_groups names the stage in which groups are formed"""
    for run in _runs():
        assert student.first_stage_with_groups(run) == "fused"


def check_bytes(student: Any) -> None:
    """bytes_saved counts what no longer travels"""
    for run in _runs():
        nodes = [n for n in run["imported"].func.nodes if n.op != "const"]
        apart = sum(n.type.bytes + sum(a.type.bytes for a in n.args) for n in nodes)
        wanted = apart - sum(k.bytes for k in run.kernels)
        found = student.bytes_saved(run)
        assert found == wanted, f"found {found} bytes, there are {wanted}"


def check_lines(student: Any) -> None:
    """kernels_of_line finds every kernel of a line, and none of another file"""
    run = _runs()[0]
    line = run.kernels[0].source[0]
    wanted = [k.name for k in run.kernels if line in k.source]
    assert student.kernels_of_line(run, line) == wanted
    assert not student.kernels_of_line(run, "elsewhere.py:1")
