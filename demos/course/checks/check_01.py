from __future__ import annotations

from functools import cache
from typing import Any

import torch

import stack
from stack.demos.course.answers import ask


def _layer(x, w, b):
    scores = x @ w + b
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top)
    return weights / weights.sum(-1, keepdim=True)


def _chain(x):
    return torch.tanh(x * 2 + 1).sum(-1)


@cache
def _runs() -> dict[str, Any]:
    x, w, b = torch.randn(8, 16), torch.randn(16, 16), torch.randn(16)
    return {
        "softmax(x @ w + b)": stack.compile(_layer, x, w, b).run,
        "x @ w, a matmul with nothing to fuse": stack.compile(torch.matmul, x, w).run,
        "tanh(x * 2 + 1).sum(-1), compiled without fusion": stack.compile(
            _chain, x, passes="canonicalize,decompose,layout"
        ).run,
    }


def check_first_stage(student: Any) -> None:
    """first_stage_with_groups names the stage in which groups are formed

    Hint: go through run.records in order; skip those whose func is None; a fusion node has
    .op == "fusion". Where no stage has one, the answer is None.
    """
    for program, run in _runs().items():
        groups = [s.name for s in run.records if s.func and _has_fusion(s.func)]
        wanted = groups[0] if groups else None
        ask(student.first_stage_with_groups, run, given=f"run of {program}").equals(wanted)


def _has_fusion(func: Any) -> bool:
    return any(node.op == "fusion" for node in func.nodes)


def check_bytes(student: Any) -> None:
    """bytes_saved counts the bytes that the kernels no longer move

    Hint: for each node of run["imported"].func.nodes that is no const, add node.type.bytes and
    arg.type.bytes of each of its .args. Subtract the sum of kernel.bytes.
    """
    for program, run in _runs().items():
        nodes = [n for n in run["imported"].func.nodes if n.op != "const"]
        unfused = sum(n.type.bytes + sum(a.type.bytes for a in n.args) for n in nodes)
        wanted = unfused - sum(k.bytes for k in run.kernels)
        ask(student.bytes_saved, run, given=f"run of {program}").equals(wanted)


def check_lines(student: Any) -> None:
    """kernels_of_line finds every kernel of a line, and none of another line or file

    Hint: kernel.source is a tuple of lines. Search for an equal line, not for a part of its text:
    "block.py:4" is no line of a kernel from "block.py:42".
    """
    program, run = next(iter(_runs().items()))
    lines = list(dict.fromkeys(line for kernel in run.kernels for line in kernel.source))
    for asked in (*lines, lines[0][:-1], f"x{lines[0]}", "elsewhere.py:1"):
        wanted = [k.name for k in run.kernels if asked in k.source]
        question = ask(student.kernels_of_line, run, asked, given=f"run of {program}, {asked!r}")
        question.equals(wanted)
