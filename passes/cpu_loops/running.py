"""Running values along the tile axis: a chunk of lanes by itself, then with what lies before it.

What all lanes of a chunk come to needs no running value of it: the chain from chunk to chunk is one
operation on a scalar, and chunks overlap in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.traits import is_running
from stack.passes.cpu_loops.chunk import is_tile, reachable


def before_first(sinks: Sequence[Node]) -> dict[Node, Node]:
    """The running values that a program stores, and what comes before their first lane."""
    found = [n for n in reachable(sinks) if is_running(n) and is_tile(n)]
    return {n: constant(identity(n.attrs["kind"], n.dtype), n.dtype) for n in found}


def goes_back(running: Iterable[Node]) -> bool:
    """Whether lanes are walked from the last to the first; all running values of a program are
    those of one scan."""
    return any(n.attrs["reverse"] for n in running)
