"""The result of `stack.compile` and `stack.jit` for a JAX function: `jax.jit` of our program.

JAX finds the program for a signature and dispatches it. Values in the closure are those at the
first call with a signature, as under `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from stack.calls.graph import CompiledGraph
from stack.calls.recapture import mismatch
from stack.cpython import undisturbed
from stack.errors import StackError
from stack.frameworks.jax_ranges import jax_ranges
from stack.frontends.jax import FRONTEND, explained
from stack.frontends.jax.capture.capture import captured_from, is_capturing, traced
from stack.frontends.jax.capture.device_arrays import device_of
from stack.frontends.jax.capture.signature import PLAIN, Form, split, statics_of
from stack.frontends.jax.compile.jit_options import with_jit_options
from stack.frontends.jax.compile.program import Program
from stack.frontends.jax.jaxpr.settings import changed, settings
from stack.ranges import register
from stack.run.options import of_graph

register("jax", jax_ranges)


class JaxCalls:
    """A JAX function that is compiled for each signature of its arguments.

    Like `jax.jit` it takes static and donated arguments, and arguments by name. In another capture
    of ours it becomes part of that program; under `jax.disable_jit` the function runs directly.
    """

    def __init__(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> None:
        self.fn, self.options = with_jit_options(fn, options)
        self.dynamic = dynamic
        self.graphs: list[CompiledGraph] = []
        self.gradients: list[CompiledGraph] = []  # `jax.grad` is part of the program
        self.forms: dict[Form, _Jitted] = {}
        self.last: Form | None = None  # that of the newest capture
        self.is_plain = statics_of(self.fn) == ((), ())

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Trace for these arguments and compile."""
        form, arrays = split(self.fn, args, kwargs)
        self._jitted(form).prepare(arrays)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        config: Any = jax.config
        if config.jax_disable_jit or is_capturing():
            return self.fn(*args, **kwargs)
        form = PLAIN
        if kwargs or not self.is_plain:
            form, args = split(self.fn, args, kwargs)
        jitted = self._jitted(form)
        return jitted.call(*args) if jax_ranges() is None else jitted.recorded(args)

    def _jitted(self, form: Form) -> _Jitted:
        if form not in self.forms:
            self.forms[form] = _Jitted(self, form)
        return self.forms[form]


class _Jitted:
    """The calls of one form.

    Attributes:
        call: the `jax.jit` function of their arrays.
        programs: those that JAX has traced so far.
    """

    def __init__(self, calls: JaxCalls, form: Form) -> None:
        self.calls, self.form = calls, form
        self.fn = form.of_arrays(calls.fn)
        self.programs: list[Program] = []
        self.settings: tuple[Hashable, ...] = ()
        self.graphs: list[CompiledGraph] = []
        self.call = jax.jit(self._staged, donate_argnums=form.donated(calls.fn))

    def prepare(self, arrays: Sequence[Any]) -> None:
        """Traces for these arguments, and compiles for the device of the arrays."""
        known = len(self.programs)
        self.call.trace(*arrays)
        for program in self.programs[known:]:
            graph = program.graph(device_of(jax.tree_util.tree_leaves(arrays)))
            graph.captured.args = tuple(arrays)

    def recorded(self, args: Sequence[Any]) -> Any:
        """Runs step by step while JAX's profiler records, so that each kernel is an event.

        A call of which no graph is compiled yet, or within a trace, is run by XLA.
        """
        is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves(args))
        for graph in () if is_traced else reversed(self.graphs):
            try:
                ready = graph.ready(graph.captured.flatten.arrays(args))
            except TypeError:  # for other arguments
                continue
            return graph.captured.unflatten(graph.execute(ready))
        return self.call(*args)

    def _staged(self, *args: Any) -> Any:
        """The function that JAX traces: binds the program of its arguments' types."""
        leaves, tree = jax.tree_util.tree_flatten(args)
        if any(getattr(jax.typeof(leaf), "vma", None) for leaf in leaves):
            return self.fn(*args)  # within `jax.shard_map`, where results differ between devices
        try:
            with explained():
                found = _Traced(self.fn, jax.tree_util.tree_unflatten(tree, map(_spec, leaves)))
        except StackError:
            raise
        except Exception as error:
            if self.graphs:
                error.add_note(mismatch(self.graphs, args).strip())
            raise
        if any(isinstance(c, Tracer) for c in found.closed.consts):
            return self.fn(*args)  # it reads values of a surrounding trace
        program = self._program(found, self._change(args))
        self.programs.append(program)
        return found.unflatten(program(*leaves))

    def _change(self, args: Sequence[Any]) -> str:
        """Returns which argument or setting differs from the newest capture; "" if it is the first
        or nothing differs.
        """
        last, self.calls.last = self.calls.last, self.form
        before, self.settings = self.settings, settings()
        if last is None:
            return ""
        if not self.graphs:
            return self.form.change(last)
        if before != self.settings:
            return f"captured with {changed(before)}"
        try:
            self.graphs[-1].captured.flatten.arrays(args)
        except TypeError as error:
            return str(error)
        return ""

    def _program(self, found: _Traced, change: str = "") -> Program:
        def compiled(device: str) -> CompiledGraph:
            return self._compiled(found, device, change)

        def batched(fn: Callable[..., Any], arrays: Sequence[Any]) -> Program:
            return self._program(_Traced(fn, tuple(map(_spec, arrays))))

        name = getattr(self.calls.fn, "__name__", type(self.calls.fn).__name__)
        return Program(name, found.flat, found.closed, compiled, batched)

    @undisturbed
    def _compiled(self, found: _Traced, device: str, change: str) -> CompiledGraph:
        dynamic = self.calls.dynamic
        if dynamic:
            for graph in self.graphs:
                if graph.captured.device == device and graph.captured.flatten.fits(found.args):
                    return graph
            captured = FRONTEND.capture(found.fn, found.args, dynamic=True, device=device)
        else:
            captured = captured_from(found.fn, found.args, found.closed, found.shapes, device)
        if change:
            captured.notes["captured again"] = change
        graph = CompiledGraph(captured, FRONTEND, **of_graph(self.calls.options))
        self.graphs.append(graph)
        self.calls.graphs.append(graph)
        return graph


class _Traced:
    """A function, traced by JAX for the types of its arguments."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args
        self.closed, self.shapes = traced(fn, args)
        self.tree = jax.tree_util.tree_structure(args)

    def flat(self, *leaves: Any) -> list[Any]:
        """The function of leaves. Numbers of Python among its results become arrays."""
        found = self.fn(*jax.tree_util.tree_unflatten(self.tree, leaves))
        return list(map(jnp.asarray, jax.tree_util.tree_leaves(found)))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Returns the results in their structure."""
        tree = jax.tree_util.tree_structure(self.shapes)
        return jax.tree_util.tree_unflatten(tree, leaves)


def _spec(array: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(array)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
