"""Shared by the peers of torch: replay with origins, array conversion, memory, user arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

from stack.frameworks.torch_private import FakeTensorMode, pytree, while_loop_op
from stack.frontends.torch.replay.space import TorchSpace
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, from_numpy, to_numpy
from stack.frontends.torch.tensors.random_ops import with_strides
from stack.ir.axes import parse_rule
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Node
from stack.ir.space import Run
from stack.ir.types import TensorType

from .peer import Origins, PeerExecutable, fixed_shape, zeros

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...]


class OriginSpace(TorchSpace):
    """Replays a function in torch; each torch op is annotated with the IR node it computes.

    Contractions become `matmul` and `linear` if possible, because torch's compilers look for these,
    and a person would have written them.
    """

    def __init__(self, origins: Origins, device: str = "cpu") -> None:
        super().__init__(device)
        self.origins = origins
        self.marked: set[torch.fx.Node] = set()

    def op_dot(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        kind = self.dtype(node.dtype)
        product = matmul(node, a, b) if a.dtype is kind and b.dtype is kind else None
        return super().op_dot(node, a, b) if product is None else product

    def op_while(self, node: Node, run: Run, *args: Tensor) -> Tensors:
        if get_proxy_mode() is None:
            return super().op_while(node, run, *args)

        # traced by make_fx, and not by Dynamo, which `while_loop` would start
        def test(*values: Tensor) -> Tensor:
            return run(node.blocks[0], values)[0].clone()

        def body(*values: Tensor) -> Tensors:
            return tuple(v.clone() for v in run(node.blocks[1], values))

        carried: Any = tuple(a.clone() for a in args)
        return tuple(while_loop_op(test, body, carried, ()))


def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor | None:
    """Computes a dot as one `torch.matmul` of views; None if it is not one."""
    rule = parse_rule(node.attrs["rule"])
    left, right, out = (
        [axis.names[0] for axis in operand] for operand in (*rule.inputs, rule.outputs[0])
    )
    summed = [n for n in left if n in right and n not in out]
    shared = [n for n in left if n in right and n in out]
    rows = [n for n in left if n not in right]
    columns = [n for n in right if n not in left]
    simple = len(summed) == 1 and len(columns) == 1 and {*rows, *columns, *shared} == {*out}
    if node.dtype.kind != "f" or not simple or out[-1:] != columns:
        return None
    k, n = summed[0], columns[0]
    if not shared:
        if not rows or left[-1] != k or out != [*rows, n]:
            return None
        return torch.matmul(a, b if right == [k, n] else b.transpose(-1, -2))
    lead = len(shared)
    if len(rows) != 1 or out != [*shared, rows[0], n] or {*left[:lead]} != {*shared}:
        return None
    if left[:lead] != shared or right[:lead] != shared:
        return None
    x = a if left[lead:] == [rows[0], k] else a.transpose(-1, -2)
    y = b if right[lead:] == [k, n] else b.transpose(-1, -2)
    return torch.matmul(x, y)


def _with_origin(name: str) -> Any:
    inner = getattr(TorchSpace, name)
    inner = OriginSpace.__dict__.get(name, inner)

    def method(self: OriginSpace, node: Node, *args: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return inner(self, node, *args)
        graph: Any = mode.tracer.graph  # pyright: ignore
        before = len(graph.nodes)
        out = inner(self, node, *args)
        trace = self.origins.trace(node)
        for fresh in islice(reversed(graph.nodes), len(graph.nodes) - before):
            if fresh not in self.marked:
                self.marked.add(fresh)
                fresh.stack_trace = trace
        return out

    return method


for _name in dir(TorchSpace):
    if _name == "elementwise" or _name.startswith("op_"):
        setattr(OriginSpace, _name, _with_origin(_name))


def callable_of(func: Func, space: OriginSpace) -> Callable[..., Tensors]:
    """Returns a function on tensors that executes `func` op by op."""
    params = [p.tensor for p in func.params]
    results = [r.tensor for r in func.results]

    def run(*args: Tensor) -> Tensors:
        held = [space.enter(a, t) for a, t in zip(args, params, strict=True)]
        out = evaluate(func.body, held, space)
        return tuple(space.leave(o, t) for o, t in zip(out, results, strict=True))

    return run


def fake_mode() -> Any:
    """A mode for fixed-size tensors without storage; loops still need a table of symbols."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)


def fakes(func: Func, device: str = "cpu") -> Tensors:
    """Tensors without storage, of the parameters' types."""
    with fake_mode():
        return tuple(
            torch.empty(fixed_shape(p.tensor), dtype=TORCH_DTYPE[p.dtype], device=device)
            for p in func.params
        )


def graph_of(func: Func, origins: Origins, device: str = "cpu") -> torch.fx.GraphModule:
    """The function as a graph of ATen ops, each with the trace of its node."""
    run = callable_of(func, OriginSpace(origins, device))
    with torch.no_grad():
        tracer = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)
        return tracer(*fakes(func, device))


def hoist_scalars(graph: torch.fx.GraphModule) -> None:
    """Create scalar constants once, instead of at each call."""
    for number, node in enumerate(graph.graph.find_nodes(
        op="call_function", target=torch.ops.aten.full.default
    )):  # fmt: skip
        if node.args[0]:
            continue
        name = f"scalar_{number}"
        graph.register_buffer(name, node.target(*node.args, **node.kwargs))
        with graph.graph.inserting_before(node):
            node.replace_all_uses_with(graph.graph.get_attr(name))
        graph.graph.erase_node(node)
    graph.recompile()


# ---- arrays


def prepare_for(
    types: Sequence[TensorType], device: str = "cpu", given: Sequence[Tensor] = ()
) -> Callable[..., Tensors]:
    """Returns a function from storage arrays to tensors allocated, and so aligned, by torch.

    Args:
        given: the user's own arguments, last among the arrays; these also get their strides.
    """
    first = len(types) - len(given)

    def prepare(arrays: Sequence[np.ndarray]) -> Tensors:
        pairs = zip(arrays, types, strict=True)
        made = [from_numpy(a, t.dtype).clone().to(device) for a, t in pairs]
        own = zip(made[first:], given, strict=True)
        return (*made[:first], *(_laid_out(x, like) for x, like in own))

    return prepare


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    offset = int(like.storage_offset())
    if like.is_contiguous() and not offset:
        return tensor
    return with_strides(tensor, like.stride(), offset)


def finish_for(types: Sequence[TensorType]) -> Callable[[Sequence[Tensor]], list[np.ndarray]]:
    """Returns a function from tensors to storage arrays that nobody else references."""

    def finish(tensors: Sequence[Tensor]) -> list[np.ndarray]:
        pairs = zip(tensors, types, strict=True)
        return [np.array(to_numpy(x, t.dtype), order="C", copy=True) for x, t in pairs]

    return finish


def accept_for(types: Sequence[TensorType], device: str) -> Callable[..., Tensors]:
    """Returns a function from arrays of any library on the device to tensors over their memory."""
    from stack.backends.device.tensors import adopt

    return lambda arrays: tuple(adopt(arrays, types, torch.device(device)))


def without_autograd(call: Callable[..., Any]) -> Callable[[Tensors], Tensors]:
    """Calls without autograd. On a GPU the call returns while the device is still busy."""

    def run(prepared: Tensors) -> Tensors:
        with torch.no_grad():
            return call(*prepared)

    return run


def wait_for(device: str) -> Callable[[], None] | None:
    """Returns a function that waits for all calls on a device; None on the CPU."""
    return torch.cuda.synchronize if torch.device(device).type == "cuda" else None


def executable(
    func: Func, run: Callable[..., Any], device: str, examples: Sequence[np.ndarray],
    given: Sequence[Tensor] = (), **fields: Any,
) -> PeerExecutable:  # fmt: skip
    """Wraps a torch program as an `Executable` on the storage arrays of a function.

    Args:
        examples: arrays for a call that measures peak memory.
        given: as for `prepare_for`.
        fields: the other fields of the record.
    """
    params, results = ([n.tensor for n in nodes] for nodes in (func.params, func.results))
    prepare, finish = prepare_for(params, device, given), finish_for(results)
    call = without_autograd(run)
    fields.setdefault("find_peak", lambda: peak_of(prepare(examples), call, device))
    return PeerExecutable(
        run=lambda arrays: finish(call(prepare(arrays))),
        prepare=prepare,
        call=call,
        finish=finish,
        device=device,
        accept=accept_for(params, device),
        wait=wait_for(device),
        arrays="torch",
        **fields,
    )


def peak_of(inputs: Tensors, call: Callable[..., Any], device: str = "cpu") -> int:
    """Peak memory of one call, without its inputs.

    It comes from torch's profiler on the CPU, and from its allocator on a GPU.
    """
    if torch.device(device).type == "cuda":
        return _gpu_peak(inputs, call)
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # otherwise it prints a message
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        held = call(inputs)
    del held
    events: Any = found.profiler.kineto_results.events()  # pyright: ignore
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    total = peak = 0
    for _, size in sorted(changes, key=lambda change: change[0]):
        total += size
        peak = max(peak, total)
    return peak


def _gpu_peak(inputs: Tensors, call: Callable[..., Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(inputs)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# ---- the user's own callable


def user_call(captured: Any) -> Callable[..., Tensors]:
    """Returns the captured callable as a function of parameter tensors, returning result tensors.

    It uses its own weights; those among the parameters are ignored.
    """
    return rebuilt(captured, captured.original)


def given(captured: Any) -> Sequence[Tensor]:
    """The user's own arguments, with their layout in memory."""
    return captured.flatten(*captured.args)


def examples(captured: Any) -> list[np.ndarray]:
    """Returns storage arrays to run a user's callable on, made from its own arguments.

    Zeros would not do: the callable may refuse them.
    """
    func, first = captured.func, len(captured.bound)
    pairs = zip(given(captured), func.params[first:], strict=True)
    return zeros(func)[:first] + [to_numpy(a, p.dtype) for a, p in pairs]


def rebuilt(captured: Any, fn: Callable[..., Any]) -> Callable[..., Tensors]:
    """Returns `fn`, which takes and returns the user's nested values, as a function of the flat
    parameters and results of the captured program.
    """
    leaves, spec = pytree.tree_flatten(tuple(captured.args))
    holes = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    bound = len(captured.bound)

    def call(*tensors: Tensor) -> Tensors:
        values = list(leaves)
        for i, tensor in zip(holes, tensors[bound:], strict=True):
            values[i] = tensor
        out = fn(*pytree.tree_unflatten(values, spec))
        return tuple(captured.unflatten.results(out, tensors[bound:]))

    return call
