"""Output of torch.compile for a compiler: graphs, graph breaks, guards, recompiles.

    python -m stack.demos.capture
    stackc explain demos/capture.py:program --breaks

The program has a Python branch on a tensor's value. Dynamo ends its first graph there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

import stack
from stack.frontends.torch import runs
from stack.frontends.torch.tracing.notes import breaks_of
from stack.run.record import Run


def decided(x: Tensor) -> Tensor:
    """Branches on a tensor in Python: one graph before the branch, and one for the side taken."""
    y = torch.tanh(x) * 2
    if y.sum() > 0:
        return torch.softmax(y, -1)
    return -y


def whole(x: Tensor) -> Tensor:
    """Computes the same as `decided` with `torch.where`, without a Python branch: one graph."""
    y = torch.tanh(x) * 2
    return torch.where(y.sum() > 0, torch.softmax(y, -1), -y)


def program() -> tuple[object, tuple[Tensor]]:
    """Returns `decided` and its example argument, as a target of the command line."""
    return decided, (torch.ones(4, 8),)


def graphs_of(fn: Callable[[Tensor], Tensor], *calls: Tensor) -> list[Run]:
    """Calls `fn` compiled by torch.compile, checks it against eager; returns a run per graph."""
    torch.compiler.reset()
    before = len(runs())
    fast = torch.compile(fn, backend="stack", dynamic=False)
    for x in calls:
        torch.testing.assert_close(fast(x), fn(x))
    found = runs()[before:]
    torch.compiler.reset()
    return found


def main() -> int:
    """Prints the captured graphs; returns 1 if the number of graphs is unexpected."""
    ones, wide = torch.ones(4, 8), torch.ones(4, 16)
    for reason in breaks_of(decided, (ones,)):
        print("break:", reason)
    counts = {
        "with a decision in Python": len(graphs_of(decided, ones)),
        "and its other half": len(graphs_of(decided, ones, -ones)),
        "with torch.where": len(graphs_of(whole, ones)),
        "with torch.where, called with two shapes": len(graphs_of(whole, ones, wide)),
    }
    for what, count in counts.items():
        print(f"{what}: {count} graphs")
    run = stack.compile(whole, ones).run
    print("\nthe guards that Dynamo checks before each call:\n")
    print(run.notes["guards"])
    print("\nthe function as rewritten by Dynamo (decompiled by depyf):\n")
    print(run.notes["decompiled"])
    print("\nour kernels:", ", ".join(k.name for k in run.kernels))
    sound = list(counts.values()) == [2, 3, 1, 2]
    print("all results agree with eager" if sound else "other graphs than expected")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
