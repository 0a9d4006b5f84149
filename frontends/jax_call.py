"""What `stack.compile` and `stack.jit` give for a JAX function: one capture for each signature.

A function of JAX is pure: what it closes over counts as it was at the capture, as under `jax.jit`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from stack.errors import UnsupportedOp
from stack.frontends.jaxpr import FRONTEND
from stack.run.compiled import mismatch
from stack.run.graph import CompiledGraph
from stack.run.options import of_graph
from stack.run.refused import raise_as_eager


class JaxCalls:
    """A JAX function that is traced for each new signature of its arguments."""

    def __init__(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> None:
        self.fn = fn
        self.dynamic = dynamic
        self.options = dict(options)
        self.graphs: list[CompiledGraph] = []
        self.gradients: list[CompiledGraph] = []  # `jax.grad` is part of the program

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Trace for these arguments and compile."""
        self._capture(self._positional(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = self._positional(args, kwargs)
        for graph in reversed(self.graphs):
            ready = graph.match(args)
            if ready is not None:
                return graph.captured.unflatten(graph.execute(ready))
        return self._capture(args)(*args)

    def _capture(self, args: tuple[Any, ...]) -> CompiledGraph:
        try:
            captured = FRONTEND.capture(self.fn, args, dynamic=self.dynamic)
        except UnsupportedOp:
            raise
        except Exception as error:
            raise_as_eager(self.fn, args, {}, error, mismatch(self.graphs, args))
            raise
        graph = CompiledGraph(captured, FRONTEND, **of_graph(self.options))
        graph.prepare(captured.flatten(*args))
        self.graphs.append(graph)
        return graph

    def _positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments by name, in their places. Raises TypeError where they have none."""
        if not kwargs:
            return tuple(args)
        given = inspect.signature(self.fn).bind(*args, **kwargs)
        if given.kwargs:
            raise TypeError(
                f"compiled functions take positional arguments: {', '.join(given.kwargs)} cannot be"
                " given by position here; bind what is fixed first (functools.partial)"
            )
        return given.args
