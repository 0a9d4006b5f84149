"""A peer that compiles nothing: runs torch op by op, or the user's framework itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.ir.func import Func
from stack.run.backend import Backend, Executable, Kernel, Peer, source_lines

from .peer import Origins, is_from, need, quiet, refuse, user_line, zeros

_FREE = ("_unsafe_view", "_reshape_alias", "device", "lift_fresh", "sym_size")


def compile_eager(func: Func, options: dict[str, Any]) -> Executable:
    """Replay a function in torch, one op after another, without autograd.

    Options:
        device: the device of the tensors: "cpu" (default) or "cuda".
    """
    from . import peer_torch as pt

    device = str(options.get("device", "cpu"))
    origins = Origins(func)
    graph = pt.graph_of(func, origins, device)
    pt.hoist_scalars(graph)

    def kernels() -> list[Kernel]:
        return [
            origins.kernel(_name(n.target), "library", origins.found([n.stack_trace or ""]))
            for n in graph.graph.nodes
            if n.op == "call_function" and _works(n.target)
        ]

    return _torch_executable(func, graph, kernels, device, zeros(func))


def native_eager(captured: Any, options: dict[str, Any]) -> Executable:
    """Runs the user's callable unchanged: torch op by op, or JAX without `jit`.

    The callable uses its own weights; those among the parameters are ignored.
    """
    if is_from("jax", captured):
        from .peer_jax import native_op_by_op

        return native_op_by_op(captured, str(options.get("device", "cpu")))
    if not is_from("torch", captured):
        raise refuse("eager", "torch and JAX")
    from . import peer_torch as pt

    device = str(options.get("device", "cpu"))
    call, given = pt.user_call(captured), pt.given(captured)

    def kernels() -> list[Kernel]:
        inputs = pt.prepare_for([p.tensor for p in captured.func.params], device, given)
        return [
            Kernel(name, "library", source=source_lines(filter(None, [line])), ops=(name[5:],))
            for name, line in _dispatched(pt.without_autograd(call), inputs(pt.examples(captured)))
        ]

    return _torch_executable(captured.func, call, kernels, device, pt.examples(captured), given)


def _torch_executable(
    func: Func, run: Any, kernels: Any, device: str, arrays: Sequence[np.ndarray],
    given: Sequence[Any] = (),
) -> Executable:  # fmt: skip
    from . import peer_torch as pt

    return pt.executable(
        func,
        run,
        device,
        arrays,
        given,
        find_kernels=kernels,
        counts_what="torch ops that do work (views left out)",
        note=f"torch {pt.torch.__version__}, op by op, {pt.torch.get_num_threads()} threads",
    )


def _name(op: Any) -> str:
    return f"aten.{op.overloadpacket.__name__}"


def _works(op: Any) -> bool:
    """True if a torch op computes or moves data; false for views and queries such as `sym_size`."""
    name = getattr(op, "__name__", "").partition(".")[0]
    return hasattr(op, "overloadpacket") and not op.is_view and name not in _FREE


def _dispatched(run: Any, inputs: Any) -> list[tuple[str, str]]:
    """All torch ops of a call that do work, each with the user's line."""
    import traceback

    from stack.frameworks.torch_private import TorchDispatchMode

    found: list[tuple[str, str]] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if _works(op):
                found.append((_name(op), user_line("".join(traceback.format_stack()))))
            return op(*args, **(kwargs or {}))

    with quiet("torch"), Record():
        run(inputs)
    return found


BACKEND = Backend(
    name="eager",
    compile=compile_eager,
    missing=need("torch", "torch"),
    options=("device",),
    peer=Peer(native_eager),
)
