"""Says why a call does not fit the graphs that were compiled before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.calls.graph import CompiledGraph
from stack.ir.node import Node

MANY_CHANGES = 8  # recaptures not due to the arguments, from which on a warning is printed


def mismatch(graphs: Sequence[CompiledGraph], args: Sequence[Any]) -> str:
    """Describes, by parameter name, how a call's arguments differ from those that the newest graph
    was compiled for; "" if there is no graph.
    """
    if not graphs:
        return ""
    free = [p for p in graphs[-1].func.params if p.attrs["name"] in graphs[-1].captured.arguments]
    known = ", ".join(f"{p.attrs['name']}: {p.type}" for p in free)
    if len(free) != len(args):
        return f"\n(compiled for: {known})"
    wrong = [
        f"argument {p.attrs['name']!r} was compiled for {p.type}, got {_shown(a)}"
        for p, a in zip(free, args, strict=True)
        if _shown(a) != _shown(p)
    ]
    return f"\n({'; '.join(wrong) or f'compiled for: {known}'})"


def _shown(value: Any) -> str:
    """An argument in a message: its element type and shape if it has them."""
    if isinstance(value, Node):
        value = value.tensor
    if not hasattr(value, "shape"):
        return type(value).__name__
    kind = str(getattr(value, "dtype", "")).split(".")[-1]
    short = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}
    head = kind.rstrip("0123456789")
    return f"{short.get(head, head)}{kind[len(head) :]}{list(value.shape)}"
