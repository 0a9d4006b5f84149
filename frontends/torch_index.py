"""Indices that a program is given: looked at before a call, and told of as late as that is safe.

On a GPU an answer takes as long as all work that was queued before the question. A graph whose
indices are brought into range first may be queued behind the question: it is at work while the
answer comes, and what it made of a wrong index is never given to anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stack.frontends.aten import IndexCheck
from stack.ir.builder import Builder, constant
from stack.ir.node import Block, Func, Node
from stack.rewrite.engine import inline_block

Answer = Callable[[], tuple[int, int]]


def ask(index: torch.Tensor) -> Answer:
    """The least and the most element of an index that has any, once the answer is called."""
    found = torch.stack(torch.aminmax(index))
    if found.device.type != "cuda":
        return lambda: _pair(found)
    held = torch.empty(2, dtype=found.dtype, pin_memory=True)
    held.copy_(found, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def answer() -> tuple[int, int]:
        event.synchronize()
        return _pair(held)

    return answer


def _pair(found: torch.Tensor) -> tuple[int, int]:
    least, most = found.tolist()
    return int(least), int(most)


def may_wait(checks: Sequence[IndexCheck]) -> bool:
    """Whether all checks are for fixed bounds, with nothing allowed besides."""
    return all(isinstance(c.low, int) and isinstance(c.high, int) and not c.besides for c in checks)


def into_range(func: Func, checks: Sequence[IndexCheck]) -> Func:
    """The function with its checked parameters brought into their ranges."""
    b = Builder()
    given: list[Node] = []
    for p in func.params:
        held = p
        for check in checks:
            if check.param is p and isinstance(check.low, int) and isinstance(check.high, int):
                least, most = constant(check.low, p.dtype), constant(check.high, p.dtype)
                held = b.min(b.max(held, least), most)
        given.append(held)
    results = inline_block(func.body, given, b)
    names, locs = {**func.body.names, **b.names}, {**func.body.locs, **b.locs}
    return Func(func.name, Block(func.params, results, names, locs), func.level)


__all__ = ["Answer", "ask", "into_range", "may_wait"]
