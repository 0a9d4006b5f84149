"""Drives JAX: `jit` compiled ahead of time, with its HLO parsed, and op by op."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from stack.errors import StackError
from stack.frameworks.jax_private import key_generator
from stack.frontends.jax import FRONTEND
from stack.frontends.jax.capture.device_arrays import from_device
from stack.frontends.jax.jaxpr.element_words import is_key
from stack.frontends.jax.lax.lowering import jax_dtype
from stack.frontends.jax.replay import space as jax_space
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Node
from stack.run.backend import Executable, Kernel, source_lines

from .peer import Origins, PeerExecutable
from .peer_hlo import Step, code_of, read_hlo, steps

# torch may share the GPU, and JAX would preallocate most of its memory
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

Arrays = tuple[Any, ...]
Describe = Callable[[list[Step]], list[Kernel]]


class OriginSpace(jax_space.JaxSpace):
    """Replays a function with each JAX op in the scope `ir<number of its node>`."""

    def __init__(self, origins: Origins) -> None:
        super().__init__()
        self.origins = origins


def _with_origin(name: str) -> Any:
    inner = getattr(jax_space.JaxSpace, name)

    def method(self: OriginSpace, node: Node, *args: Any) -> Any:
        with jax.named_scope(f"ir{self.origins.order[node]}"):
            return inner(self, node, *args)

    return method


for _name in dir(jax_space.JaxSpace):
    if _name == "elementwise" or _name.startswith("op_"):
        setattr(OriginSpace, _name, _with_origin(_name))


def replay(func: Func, origins: Origins) -> Callable[..., Arrays]:
    """Returns a function of JAX arrays that computes `func` op by op and returns a tuple.

    Each op is traced in a scope that names its node of the IR.
    """
    space = OriginSpace(origins)

    def replayed(*arrays: Any) -> Arrays:
        args = [space.settle(a, p.tensor) for a, p in zip(arrays, func.params, strict=True)]
        return tuple(evaluate(func.body, args, space))

    replayed.__name__ = func.name
    return replayed


# ---- arrays


Context = Callable[[], AbstractContextManager[Any]]


def context_for(func: Func, device: str) -> Context:
    """A context with the integer width and default device, for tracing and for new arrays."""

    @contextmanager
    def context() -> Iterator[None]:
        with jax_space.x64(func), jax.default_device(jax_device(device)):
            yield

    return context


def jax_device(name: str) -> Any:
    """JAX's device for "cpu", "cuda" or "cuda:1". Raises StackError if JAX has no such device."""
    kind, _, number = name.partition(":")
    try:
        return jax.devices("cpu" if kind == "cpu" else "gpu")[int(number or 0)]
    except (RuntimeError, IndexError) as error:
        raise StackError(f"xla: no device {name}: {str(error).splitlines()[0]}") from error


def _accept(arrays: Sequence[Any]) -> Arrays:
    """Converts arrays of any library on the device to JAX arrays over the same memory."""
    return tuple(from_device(a) if not isinstance(a, jax.Array) else a for a in arrays)


def _prepare(func: Func, context: Context) -> Callable[[Sequence[np.ndarray]], Arrays]:
    def prepare(arrays: Sequence[np.ndarray]) -> Arrays:
        pairs = zip(arrays, func.params, strict=True)
        with context():
            return tuple(FRONTEND.from_numpy(np.array(a, order="C"), p.dtype) for a, p in pairs)

    return prepare


def _finish(func: Func) -> Callable[[Arrays], list[np.ndarray]]:
    def finish(results: Arrays) -> list[np.ndarray]:
        pairs = zip(results, func.results, strict=True)
        return [np.array(FRONTEND.to_numpy(x, r.dtype), order="C") for x, r in pairs]

    return finish


def _calling(fn: Callable[..., Any], func: Func, wait: bool) -> Callable[[Arrays], Arrays]:
    def call(prepared: Arrays) -> Arrays:
        with jax_space.x64(func):
            found = fn(*prepared)
            return jax.block_until_ready(found) if wait else found

    return call


def _wait_for(device: str) -> Callable[[], None] | None:
    """Returns a function that waits for all calls on a device, by a later operation on it.

    None on the CPU, where calls return when they are finished.
    """
    if device == "cpu":
        return None
    return lambda: jax.block_until_ready(jax.device_put(0.0, jax_device(device)) + 0)


def user_call(captured: Any) -> Callable[..., Arrays]:
    """Returns the captured callable as a function of parameter arrays, returning result arrays.

    It uses the arrays that it closes over; the parameters that represent them are ignored.
    """
    leaves, tree = jax.tree_util.tree_flatten(tuple(captured.args))
    bound = len(captured.bound)

    def call(*arrays: Any) -> Arrays:
        given = [
            jax.random.wrap_key_data(a, impl=key_generator(leaf.dtype).name) if is_key(leaf) else a
            for a, leaf in zip(arrays[bound:], leaves, strict=True)
        ]
        out = captured.original(*jax.tree_util.tree_unflatten(tree, given))
        results = jax.tree_util.tree_leaves(out)
        return tuple(jax.random.key_data(r) if is_key(r) else r for r in results)

    call.__name__ = captured.func.name
    return call


# ---- compiled


def compile_replay(func: Func, options: dict[str, Any]) -> Executable:
    """See `xla.compile_xla`."""
    origins = Origins(func)
    nodes = list(origins.order)

    def describe(steps: list[Step]) -> list[Kernel]:
        groups = [
            {nodes[i] for x in inner for i in x.scopes if i < len(nodes)} for *_, inner in steps
        ]
        # XLA reshapes a dot with several batch axes and drops its name: match by size, in order
        lost = [n for n in nodes if n.op == "dot" and not any(n in g for g in groups)]
        for (*_, inner), group in zip(steps, groups, strict=True):
            sizes = [x.size for x in inner if x.op == "dot" and not x.scopes]
            for size in sizes:
                node = next((n for n in lost if n.tensor.size == size), None)
                if node is not None:
                    lost.remove(node)
                    group.add(node)
        return [
            origins.kernel(name, kind, group)
            for (name, kind, _), group in zip(steps, groups, strict=True)
        ]

    fn = replay(func, origins)
    return _compiled(
        func, fn, options, describe, "jax.jit of the IR's replay, weights are arguments"
    )


def compile_native(captured: Any, options: dict[str, Any]) -> Executable:
    """See `xla.native_xla`."""

    def describe(steps: list[Step]) -> list[Kernel]:
        return [
            Kernel(
                name,
                kind,
                source=tuple(dict.fromkeys(x.line for x in inner if x.line)),
                ops=tuple(dict.fromkeys(x.primitive for x in inner if x.primitive)),
            )
            for name, kind, inner in steps
        ]

    return _compiled(
        captured.func, user_call(captured), options, describe, "jax.jit of the original"
    )


def _compiled(
    func: Func, fn: Callable[..., Any], options: dict[str, Any], describe: Describe,
    what: str,
) -> Executable:  # fmt: skip
    device = str(options.get("device", "cpu"))
    context = context_for(func, device)
    specs = [jax.ShapeDtypeStruct(p.shape, jax_dtype(p.dtype)) for p in func.params]
    try:
        with context():
            lowered = jax.jit(fn, keep_unused=True).lower(*specs)
            compiled = lowered.compile(compiler_options=options.get("xla"))
    except StackError:
        raise
    except Exception as error:
        raise StackError(f"xla: {type(error).__name__}: {error}") from error

    def kernels() -> list[Kernel]:
        module = read_hlo(compiled.as_text() or "")
        found = describe(steps(module))
        return [replace(k, text=code_of(module, k.name), extension="hlo") for k in found]

    def peak() -> int | None:
        found = compiled.memory_analysis()
        if found is None:
            return None
        return int(found.temp_size_in_bytes + found.output_size_in_bytes)

    return _executable(
        func,
        compiled,
        device,
        find_kernels=kernels,
        find_peak=peak,
        artifacts={"hlo": lambda: compiled.as_text() or ""},
        counts_what="instructions of the optimized HLO that run: fusions (generated) and dots,"
        " convolutions and custom calls (library)",
        note=f"jax {jax.__version__}, {what}",
    )


def _executable(func: Func, fn: Callable[..., Any], device: str, **fields: Any) -> PeerExecutable:
    prepare, finish = _prepare(func, context_for(func, device)), _finish(func)
    call = _calling(fn, func, device == "cpu")
    return PeerExecutable(
        run=lambda arrays: finish(call(prepare(arrays))),
        prepare=prepare,
        call=call,
        finish=finish,
        device=device,
        accept=_accept,
        wait=_wait_for(device),
        arrays="jax",
        **fields,
    )


# ---- op by op


def native_op_by_op(captured: Any, device: str = "cpu") -> Executable:
    """Runs the user's callable without an outer `jit`: each op is dispatched separately.

    JAX functions that are themselves jitted (`jnp.where`, `jax.nn.silu`) stay jitted.
    """
    return _executable(
        captured.func,
        user_call(captured),
        device,
        find_kernels=lambda: _dispatched(captured),
        counts_what="primitives and jitted helpers that JAX dispatches",
        note=f"jax {jax.__version__}, op by op, without jit",
    )


def _dispatched(captured: Any) -> list[Kernel]:
    from stack.frontends.jax.jaxpr.variable_names import line_of

    closed = jax.make_jaxpr(captured.original)(*captured.args)
    found: list[Kernel] = []
    for eqn in closed.jaxpr.eqns:
        name = str(eqn.params.get("name", eqn.primitive.name))
        source = source_lines(line_of(eqn, (), ()))
        found.append(Kernel(name, "library", source=source, ops=(eqn.primitive.name,)))
    return found
