"""Records the ATen ops of a Dynamo graph, without AOTAutograd.

AOTAutograd runs a graph once to find its writes and aliases, then again in wrappers that make
writes functional, to trace it. If no gradients are needed, one run on fake tensors below a dispatch
mode records the same ops. If the graph writes to memory, it runs again in the same wrappers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.traceback import get_current_meta, preserve_node_meta

from stack.frameworks import torch_private as private
from stack.frameworks.torch_private import FakeTensor, memory_id

aten = torch.ops.aten
# metadata that a recorded op takes from its Dynamo node
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node")
_SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool
Decomposition = Callable[..., Any]


@dataclass(frozen=True)
class _Input:
    """Marks a placeholder as AOTAutograd does: by the number of its argument."""

    idx: int


class _Effect(Exception):
    """Raised for an op that has another effect than its results, such as a write."""


@dataclass(frozen=True)
class Recorded:
    """The ATen ops of a graph.

    Attributes:
        written: the arguments that the first results are the new values of.
    """

    graph: GraphModule
    written: Sequence[int]


def recorded(
    gm: GraphModule, decomposition: Callable[[Any], Decomposition | None]
) -> Recorded | None:
    """Records the ATen ops of a Dynamo graph; None if only AOTAutograd can trace the graph.

    Ops that eager runs by calling others are recorded as these.

    Args:
        decomposition: returns the decomposition of an op that is not recorded as it is.
    """
    fakes: list[Any] = [n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")]
    is_in_mode = torch.is_inference_mode_enabled() or private.is_autocast()
    if not fakes or is_in_mode or len([*gm.modules()]) > 1 or not has_known_sizes(gm):
        return None
    for is_functional in (False, True):
        try:
            with fakes[0].fake_mode, private.python_dispatch():
                return _Recorder(decomposition, fakes, is_functional).run(gm)
        except (_Effect, NotImplementedError):  # the latter from loops and branches
            continue
    return None


def is_own(found: Recorded) -> bool:
    """True if a graph writes to no argument, and its results are tensors with memory of their own.

    No two of them share memory.
    """
    given = {memory_id(n.meta["val"]) for n in found.graph.graph.find_nodes(op="placeholder")}
    results: Any = found.graph.graph.output_node().args[0]
    if not all(isinstance(r, Node) for r in results):
        return False
    memories = {memory_id(r.meta["val"]) for r in results}
    is_apart = len(memories) == len(results) and memories.isdisjoint(given)
    return is_apart and not found.written


def has_known_sizes(gm: GraphModule) -> bool:
    """True if all values of a Dynamo graph are tensors of known sizes."""
    gives = [n for n in gm.graph.nodes if n.op != "output" and n.target is not operator.setitem]
    values = [n.meta.get("example_value") if n.op != "get_attr" else None for n in gives]
    for value in private.pytree.tree_leaves(values):
        if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
            return False
        if any(type(size) is not int for size in value.shape):
            return False
    return True


def _functional(
    run: Callable[..., Any], given: Sequence[torch.Tensor]
) -> tuple[Any, dict[int, Any]]:
    """Runs a graph with functional ops in place of writes.

    Returns the results, and the new values of arguments by their numbers. Raises _Effect if an
    argument gets other strides, or if another one would have to see the write.
    """
    with private.FunctionalTensorMode():
        values = private.Functional()
        held = [values.enter(tensor) for tensor in given]
        found = private.pytree.tree_map(values.leave, run(*held))
        written = {i: values.leave(h) for i, h in enumerate(held) if values.is_written(h)}
    memories = [memory_id(tensor) for tensor in given]
    is_shared = any(memories.count(memories[place]) > 1 for place in written)
    if is_shared or any(map(values.is_reshaped, held, given)):
        raise _Effect
    return found, written


class _Recorder(private.TorchDispatchMode):
    """Adds each op that torch dispatches to a graph; its results are fake tensors.

    Args:
        is_functional: true to replace writes by functional ops.
    """

    def __init__(
        self, decomposition: Callable[[Any], Decomposition | None], fakes: Sequence[FakeTensor],
        is_functional: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.decomposition, self.is_functional = decomposition, is_functional
        self.module = GraphModule(torch.nn.Module(), Graph())  # no code is generated for its ops
        self.graph = self.module.graph
        self.nodes: dict[int, Node] = {}  # by id of the tensor, which the node's metadata keeps
        for place, fake in enumerate(fakes):
            # a copy: a node may change an argument's metadata
            given = fake.detach().requires_grad_(fake.requires_grad)
            node = self.graph.placeholder(f"arg{place}_1")
            node.meta = {"val": given, "desc": _Input(place)}
            self.nodes[id(given)] = node

    def run(self, gm: GraphModule) -> Recorded:
        """Records a graph. Raises _Effect if it writes to memory, or has another effect."""
        given = [n.meta["val"] for n in self.nodes.values()]
        run = Interpreter(gm).run
        with self, preserve_node_meta():
            found, written = _functional(run, given) if self.is_functional else (run(*given), {})
        self.graph.output(tuple(map(self._operand, (*written.values(), *found))))
        self.graph.eliminate_dead_code()
        return Recorded(self.module, [*written])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if self.is_functional:
            with private.disable_functional_mode() as wrappers:
                if wrappers is not None:  # it calls functional ops, which are recorded
                    if private.has_effect(func) and func.namespace != "aten":
                        raise _Effect
                    with self:
                        return wrappers.__torch_dispatch__(func, types, args, named)
        if func.namespace == "prim":  # a query, such as of a tensor's device
            return func(*args, **named)
        parts = self.decomposition(func)
        if parts is None and private.is_composite(func):
            parts = func.decompose
        if parts is not None:
            with self:
                found = parts(*args, **named)
            if found is not NotImplemented:
                return found
        if private.has_effect(func):
            raise _Effect
        if func is aten.lift_fresh.default:
            func = aten.lift_fresh_copy.default
        given, more = self._operand(args), {k: self._operand(v) for k, v in named.items()}
        found = func(*args, **named)
        name = func.overloadpacket.__name__
        self._name(found, self.graph.create_node("call_function", func, given, more, name))
        return found

    def _name(self, found: Any, node: Node) -> None:
        """Makes `node` the node of a call's results."""
        origin = get_current_meta()  # of the Dynamo node that runs now
        node.meta = {name: origin[name] for name in _ORIGIN if name in origin} | {"val": found}
        if isinstance(found, torch.Tensor):
            self.nodes[id(found)] = node
            return
        if not isinstance(found, list | tuple):
            raise _Effect  # a number that depends on data
        for i, part in enumerate(found):
            if isinstance(part, torch.Tensor):
                self._name(part, self.graph.call_function(operator.getitem, (node, i)))

    def _operand(self, value: Any) -> Any:
        """Returns an operand with the nodes of its tensors."""
        if isinstance(value, list | tuple):
            return type(value)([self._operand(v) for v in value])  # pyright: ignore
        if isinstance(value, torch.Tensor):
            return self.nodes.get(id(value)) or self._constant(value)
        if isinstance(value, _SYMBOLIC):
            raise _Effect
        return value

    def _constant(self, value: torch.Tensor) -> Node:
        if isinstance(value, FakeTensor):
            raise _Effect  # it comes from elsewhere
        name = f"_tensor_constant{len(self.graph.find_nodes(op='get_attr'))}"
        setattr(self.module, name, value)
        self.nodes[id(value)] = self.graph.create_node("get_attr", name)
        return self.nodes[id(value)]
