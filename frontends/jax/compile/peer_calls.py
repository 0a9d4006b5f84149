"""Calls of a JAX function that another compiler compiles, on arrays of its own.

Each signature is captured once. Values in the closure are those at the capture, as under `jax.jit`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from stack.calls.graph import CompiledGraph
from stack.calls.recapture import mismatch
from stack.errors import StackError
from stack.frontends.jax.capture.capture import is_capturing
from stack.frontends.jax.capture.signature import Form, split
from stack.frontends.jax.compile.jit_options import with_jit_options
from stack.run.frontend import Frontend
from stack.run.options import of_graph


class PeerCalls:
    """A JAX function that is traced, and compiled by a peer, for each signature of its arguments.

    Like `jax.jit` it takes static arguments and arguments by name. In another capture of ours it
    becomes part of that program; under `jax.disable_jit` the function runs directly.
    """

    def __init__(
        self, frontend: Frontend, fn: Any, dynamic: bool, options: Mapping[str, Any]
    ) -> None:
        self.frontend = frontend
        self.fn, self.options = with_jit_options(fn, options)
        self.dynamic = dynamic
        self.graphs: list[CompiledGraph] = []
        self.gradients: list[CompiledGraph] = []  # `jax.grad` is part of the program
        self.forms: dict[Form, list[CompiledGraph]] = {}

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Trace for these arguments and compile."""
        self._capture(*split(self.fn, args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        form, arrays = split(self.fn, args, kwargs)
        for graph in reversed(self.forms.get(form, ())):
            ready = graph.match(arrays)
            if ready is not None:
                return graph.captured.unflatten(graph.execute(ready))
        if self._is_theirs(arrays):
            return self.fn(*args, **kwargs)
        return self._capture(form, arrays)(*arrays)

    def _is_theirs(self, arrays: Sequence[Any]) -> bool:
        """True if JAX runs this call: as a part of another program, or under `jax.disable_jit`."""
        config: Any = jax.config
        if config.jax_disable_jit:
            return True
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves(arrays)):
            return False
        if not is_capturing():
            name = getattr(self.fn, "__name__", type(self.fn).__name__)
            warnings.warn(
                f"{name}: not compiled by stack where jax.grad, jax.vmap or jax.jit is around it;"
                f" put that inside, as in stack.jit(jax.grad({name}))",
                stacklevel=4,
            )
        return True

    def _capture(self, form: Form, arrays: tuple[Any, ...]) -> CompiledGraph:
        fn, known = form.of_arrays(self.fn), self.forms.setdefault(form, [])
        try:
            captured = self.frontend.capture(fn, arrays, dynamic=self.dynamic)
        except StackError:
            raise
        except Exception as error:
            if known:
                error.add_note(mismatch(known, arrays).strip())
            raise
        graph = CompiledGraph(captured, self.frontend, **of_graph(self.options))
        graph.prepare(captured.flatten(*arrays))
        self.graphs.append(graph)
        known.append(graph)
        return graph
