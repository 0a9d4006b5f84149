"""Calls of a function of the IR: it takes and returns storage arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stack.calls.graph import CompiledGraph
from stack.ir.func import Func
from stack.run.options import of_graph
from stack.run.trace import IRFrontend, captured_of


class IRCalls:
    """A function of the IR, compiled as it is: one graph, for its own sizes."""

    gradients: Sequence[CompiledGraph] = ()

    def __init__(self, func: Func, options: Mapping[str, Any]) -> None:
        graph = CompiledGraph(captured_of(func), IRFrontend(), **of_graph(options))
        self.graphs = [graph]

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if args:
            self.graphs[0].prepare(args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.graphs[0](*args, **kwargs)
