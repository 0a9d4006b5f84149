"""A compiled JAX function as one primitive of JAX, so that all transformations apply to it.

JAX traces, dispatches and donates it like any other operation. We compile it when JAX lowers it for
a device. `jax.vmap` of it is compiled as another program. Its derivative is that of the function,
which JAX compiles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from stack.calls.graph import CompiledGraph
from stack.frontends.jax.compile.foreign import replay_compiled
from stack.frontends.jax.jaxpr.element_words import from_words, to_words
from stack.frontends.jax.lax.lowering import LOWERINGS, Site
from stack.frontends.jax.replay.space import x64
from stack.ir.node import Node

Array = Any
PLATFORMS = {"cpu": "cpu", "cuda": "cuda:0"}  # of XLA, with the devices that we compile for


class Program:
    """A function of arrays, traced for the types of its arguments.

    Args:
        name: of the user's function.
        fn: the function, of the leaves of its arguments; returns a list of leaves.
        closed: its jaxpr.
        compiled: returns the compiled graph for a device.
        batched: returns the program of another function of leaves, for their types.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        closed: Any,
        compiled: Callable[[str], CompiledGraph],
        batched: Callable[[Callable[..., Any], Sequence[Any]], Program],
    ) -> None:
        self.fn, self.closed = fn, closed
        self.compiled, self.batched = compiled, batched
        self.name = name
        self.graphs: dict[str, CompiledGraph] = {}

    def graph(self, device: str) -> CompiledGraph:
        """Returns the compiled graph for a device; compiles it at the first call."""
        if device not in self.graphs:
            self.graphs[device] = self.compiled(device)
        return self.graphs[device]

    def __call__(self, *arrays: Any) -> list[Array]:
        """Calls it on the leaves of arguments, also within a trace."""
        return program_p.bind(*arrays, program=self)


program_p = Primitive("stack_program")
program_p.multiple_results = True


def _types(*_: Any, program: Program) -> tuple[Sequence[Any], Any]:
    return program.closed.out_avals, program.closed.effects


def _run(*arrays: Array, program: Program) -> Any:
    """Runs it outside of `jax.jit`. Under `jax.debug_nans`, JAX runs the function op by op."""
    config: Any = jax.config
    if config.jax_debug_nans or config.jax_debug_infs:
        return program.fn(*arrays)
    return jax.jit(program)(*arrays)


program_p.def_effectful_abstract_eval(_types)
program_p.def_impl(_run)


# ---- lowering


def _on(device: str) -> Callable[..., Any]:
    """Returns the lowering rule for a device: custom calls, and operations of XLA."""

    def rule(ctx: Any, *values: Any, program: Program) -> Any:
        graph, avals = program.graph(device), program.closed.out_avals
        graph.prepare_shapes([physical_shape(a) for a in (*graph.captured.bound, *ctx.avals_in)])

        def run(*arrays: Array) -> list[Array]:
            words = [to_words(a) for a in (*graph.captured.bound, *arrays)]
            steps, given = graph.foreign(words)
            found = replay_compiled(steps)(*given)
            return [from_words(w, a.dtype) for w, a in zip(found, avals)]

        with x64(graph.func):
            return mlir.lower_fun(run, True)(ctx, *values)

    return rule


def physical_shape(array: Any) -> tuple[int, ...]:
    """Returns the shape of an array's words."""
    return jax.eval_shape(to_words, jax.ShapeDtypeStruct(array.shape, array.dtype)).shape


def _elsewhere(ctx: Any, *values: Any, program: Program) -> Any:
    """Lowers the function itself, for a device that we do not compile for."""
    return mlir.lower_fun(program.fn, True)(ctx, *values)


mlir.register_lowering(program_p, _elsewhere)
for _platform, _device in PLATFORMS.items():
    mlir.register_lowering(program_p, _on(_device), platform=_platform)


def _imported(site: Site, *args: Node, program: Program) -> list[Node]:
    """Imports it into another program that we capture."""
    return site.importer.closed(program.closed, args)


LOWERINGS[program_p.name] = _imported


# ---- transformations


def _derivative(primals: Sequence[Array], tangents: Sequence[Any], program: Program) -> Any:
    """Computes the derivative of the function."""
    warnings.warn(
        f"{program.name}: not compiled by stack where jax.grad is around it; put that inside, as in"
        f" stack.jit(jax.grad({program.name}))",
        stacklevel=2,
    )
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def of_moving(*given: Array) -> Sequence[Array]:
        held = list(primals)
        for place, array in zip(moving, given, strict=True):
            held[place] = array
        return program.fn(*held)

    out, made = jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
    return out, [_tangent(t) for t in made]


def _tangent(tangent: Any) -> Any:
    """Returns a tangent in the form of JAX's rules: an integer has none."""
    has_none = tangent.dtype == jax.dtypes.float0
    return ad.Zero(ShapedArray(tangent.shape, tangent.dtype)) if has_none else tangent


def _batch(arrays: Sequence[Array], dims: Sequence[int | None], program: Program) -> Any:
    """Compiles the function under `jax.vmap` as another program."""
    batched = program.batched(jax.vmap(program.fn, in_axes=tuple(dims)), arrays)
    return batched(*arrays), (0,) * len(program.closed.out_avals)


ad.primitive_jvps[program_p] = _derivative
batching.primitive_batchers[program_p] = _batch
