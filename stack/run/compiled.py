"""compile() and jit(): a user's callable under our compiler, captured again when it has to be."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stack.errors import StackError, UnsupportedOp
from stack.ir.node import Func, Node
from stack.run.compile import (
    DEVICE_BACKEND,
    CompiledGraph,
    compile_captured,
    find_frontend,
    warm,
)
from stack.run.record import Run

MANY_CHANGES = 8


class Compiled:
    """A user's callable under our compiler.

    Captures again when shapes or the structure of arguments change, and when what the program
    read besides them does: attributes and training flags of modules, globals. A function of JAX is
    pure: what it closes over counts as it was at the capture, as under `jax.jit`.

    `run` is the record of the newest compilation, `func` its imported function.
    """

    def __init__(self, fn: Any, capture_options: dict[str, Any], **options: Any) -> None:
        self.fn = fn
        self.frontend_name: str = capture_options.get("frontend", "auto")
        self.dynamic: bool = capture_options.get("dynamic", False)
        self.options = options
        self.graphs: list[CompiledGraph] = []
        self.changes = 0  # captures that something besides the arguments made necessary

    @property
    def graph(self) -> CompiledGraph:
        if not self.graphs:
            raise StackError("not compiled yet: call it once, or use stack.compile(fn, *args)")
        return self.graphs[-1]

    @property
    def run(self) -> Run:
        return self.graph.run

    @property
    def func(self) -> Func:
        return self.graph.func

    def capture(self, args: Sequence[Any]) -> CompiledGraph:
        """Trace for these arguments and compile."""
        frontend = find_frontend(self.fn, args, self.frontend_name)
        on_gpu = any(str(getattr(a, "device", "")).startswith("cuda") for a in args)
        warm(self.options.get("backend") or (DEVICE_BACKEND if on_gpu else None))
        try:
            captured = frontend.capture(self.fn, args, dynamic=self.dynamic)
        except UnsupportedOp:
            raise
        except Exception as error:
            self._raise_as_eager(args, error)
            raise
        graph = compile_captured(captured, frontend, **self.options)
        if graph.func.symbols:
            graph.executable_for(graph.ready(captured.flatten(*args)))
        self.graphs.append(graph)
        return graph

    def _raise_as_eager(self, args: Sequence[Any], error: Exception) -> None:
        """Where eager refuses the arguments too, raise its type and say what was compiled for."""
        try:
            self.fn(*args)
        except Exception as eager:
            text = f"{eager}{self._mismatch(args)}"
            try:
                same = type(eager)(text)
            except Exception:
                raise eager from error
            raise same from eager

    def _mismatch(self, args: Sequence[Any]) -> str:
        """Which arguments differ from what was compiled for, by name."""
        if not self.graphs:
            return ""
        graph = self.graphs[-1]
        free = graph.func.params[len(graph.captured.bound) :]
        known = ", ".join(f"{p.attrs['name']}: {p.type}" for p in free)
        if len(free) != len(args):
            return f"\n(compiled for: {known})"
        wrong = [
            f"argument {p.attrs['name']!r} was compiled for {p.type}, got {_shown(a)}"
            for p, a in zip(free, args, strict=True)
            if _shown(a) != _shown(p)
        ]
        return f"\n({'; '.join(wrong) or f'compiled for: {known}'})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = self._positional(args, kwargs)
        reason = ""
        for graph in reversed(self.graphs):
            ready = graph.match(args)
            if ready is None:
                continue
            changed = graph.captured.changed()
            if not changed:
                return graph.captured.unflatten(graph.execute(ready))
            reason = reason or changed
        graph = self.capture(args)
        if reason:
            self._note_change(graph, reason)
        return graph(*args)

    def _positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments by name, in their places. Raises TypeError where they have none."""
        # a module's own names are those of its forward
        signature = inspect.signature(getattr(self.fn, "forward", self.fn))
        given = signature.bind(*args, **kwargs)
        if given.kwargs:
            raise TypeError(
                f"compiled functions take positional arguments: {', '.join(given.kwargs)} cannot be"
                " given by position here; bind what is fixed first (functools.partial)"
            )
        return given.args

    def _note_change(self, graph: CompiledGraph, reason: str) -> None:
        self.changes += 1
        graph.captured.notes["captured again"] = f"no longer holds: {reason}"
        if self.changes == MANY_CHANGES:
            warnings.warn(
                f"captured {MANY_CHANGES} times because something besides the arguments changed,"
                f" the last time: {reason}; pass it as an argument",
                stacklevel=3,
            )


def _shown(value: Any) -> str:
    """An argument in a message: element type and shape where it has them."""
    if isinstance(value, Node):
        value = value.tensor
    if not hasattr(value, "shape"):
        return type(value).__name__
    kind = str(getattr(value, "dtype", "")).split(".")[-1]
    short = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}
    head = kind.rstrip("0123456789")
    return f"{short.get(head, head)}{kind[len(head) :]}{list(value.shape)}"


def compile(
    fn: Any,
    *args: Any,
    backend: str | None = None,
    passes: str = "default",
    strict: bool = False,
    frontend: str = "auto",
    dynamic: bool = False,
    target: str = "",
    **options: Any,
) -> Compiled:
    """Compile a torch module or function, or a JAX function, for example arguments.

    Args:
        fn: what eager would call as `fn(*args)`.
        backend: any of `stackc backends`; by default "mlir" for arrays in host memory, "triton"
            for arrays on a GPU.
        passes: a pipeline such as "canonicalize,fuse{max_inputs=8}" in place of the backend's own.
        strict: refuse ops that would fall back to the framework.
        dynamic: make sizes symbolic where the framework can.

    Raises:
        UnsupportedOp: with strict, every op without a native lowering.
        BackendMissing: naming the extra to install or the device needed.
    """
    compiled = Compiled(
        fn,
        {"frontend": frontend, "dynamic": dynamic},
        backend=backend,
        passes=passes,
        strict=strict,
        options=options,
        target=target,
    )
    compiled.capture(args)
    return compiled


def jit(fn: Callable[..., Any], **options: Any) -> Compiled:
    """`jax.jit` by this compiler: traces at the first call and for each new signature."""
    return Compiled(fn, {"frontend": "jax"}, **options)
