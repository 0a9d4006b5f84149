"""Tracing of Dynamo graphs to ATen ops without AOTAutograd, if no gradients are needed.

AOTAutograd runs a graph once to find its writes and aliases, then again in wrappers that make
writes functional, to trace it. If arguments are not written to and results are not views of them,
direct tracing records the same ops, and a call needs no wrappers. Equal nodes, such as those of a
model's repeated layers, are traced once (see `tracing.repeated_nodes`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as origins
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx, snapshot_fake

from stack.frameworks import torch_private as private
from stack.frameworks.torch_private import FakeTensor, OpOverload, pytree
from stack.frontends.torch.program.fast_path import has_parts
from stack.frontends.torch.tracing.call_keys import Operands, leaves, mapped, memory_of
from stack.frontends.torch.tracing.repeated_nodes import Alike

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


@dataclass(frozen=True)
class _Input:
    """Marks a placeholder as AOTAutograd does: by the number of its argument."""

    idx: int


class _Writes(Exception):
    """Raised if the graph writes to its arguments or has other effects."""


def plain_graph(
    gm: GraphModule, examples: Sequence[Any], decompositions: Mapping[Any, Callable[..., Any]]
) -> GraphModule | None:
    """Returns the ATen ops of a graph; None if the graph needs AOTAutograd.

    Args:
        gm: a Dynamo graph.
        examples: its arguments.
    """
    holders = gm.graph.find_nodes(op="placeholder")
    fakes: list[Any] = [holder.meta.get("example_value") for holder in holders]
    if not fakes or not _is_plain(gm, examples):
        return None
    tracing = make_fx(
        lambda *given: _Tracing(gm, given).run(*given),
        decomposition_table=decompositions,  # pyright: ignore[reportArgumentType]
        record_module_stack=True,
        _disable_torch_fn_metadata_mode=True,
    )
    try:
        with ExitStack() as held:
            held.enter_context(torch.autograd.set_multithreading_enabled(False))
            held.enter_context(fakes[0].fake_mode)
            held.enter_context(private.python_dispatch())
            held.enter_context(origins.preserve_node_meta())
            # copies, because a node may change the metadata of an argument
            graph = tracing(*map(_alias, fakes))
    except _Writes:
        return None
    if not _is_own(graph):
        return None
    for place, holder in enumerate(graph.graph.find_nodes(op="placeholder")):
        holder.meta["desc"] = _Input(place)
    graph.graph.eliminate_dead_code()
    return graph


def _is_plain(gm: GraphModule, examples: Sequence[Any]) -> bool:
    """True if all values are tensors of known sizes and no mode is on."""
    gives = (n for n in gm.graph.nodes if n.op != "output" and n.target is not operator.setitem)
    has_mode = torch.is_inference_mode_enabled() or private.is_autocast()
    if has_mode or has_parts(gm) or any(type(x) not in _PLAIN for x in examples):
        return False
    return all(_is_tensors(n.meta.get("example_value")) for n in gives)


def _is_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_tensors, value))
    is_strided = isinstance(value, FakeTensor) and value.layout is torch.strided
    return is_strided and all(type(s) is int for s in value.shape)


def _alias(fake: FakeTensor) -> FakeTensor:
    made: Any = snapshot_fake(fake)
    return made.requires_grad_() if fake.requires_grad else made


def _is_own(graph: GraphModule) -> bool:
    """True if each result of a graph is a tensor that shares memory with no input or result."""
    given = {memory_of(n.meta["val"]) for n in graph.graph.find_nodes(op="placeholder")}
    results: Any = graph.graph.output_node().args[0]
    if not all(isinstance(r, Node) and _is_tensors(r.meta.get("val")) for r in results):
        return False
    found = {memory_of(r.meta["val"]) for r in results}
    return len(found) == len(results) and found.isdisjoint(given)


class _Tracing(Interpreter):
    """Interprets a Dynamo graph under `make_fx`. Equal nodes are traced once.

    Writes become functional ops. Raises _Writes if that is impossible: the graph writes to its
    arguments or to memory that another value views, or has other effects.
    """

    def __init__(self, gm: GraphModule, given: Sequence[torch.Tensor]) -> None:
        super().__init__(gm)
        mode = get_proxy_mode()
        assert mode is not None
        self.ops = mode.tracer.graph
        self.alike = Alike(mode.tracer)
        self.given = set(map(memory_of, given))

    def run_node(self, n: Node) -> Any:
        if n.op not in ("call_function", "call_method"):
            return super().run_node(n)
        args = self.fetch_args_kwargs_from_env(n)
        operands = self.alike.operands((n.op, n.target, args))
        if operands is None:  # the node cannot be compared with others
            return self._traced(n, args, None)[0]
        if operands not in self.alike:
            last = self._last()
            found = self._traced(n, args, operands)
            self.alike.learn(operands, list(_since(last)), found)
        else:
            found = self.alike.again(n, operands)
        result, written = found
        self._replace(written)
        return result

    def _traced(self, n: Node, args: Any, operands: Operands | None) -> Any:
        """Traces a node. Returns its result, and pairs of written operands and their new values."""
        last, slots = self._last(), self.alike.slots(operands)
        found = super().run_node(n)
        made = list(_since(last))
        if all(map(_gives_only, made)):
            return found, []
        if operands is None:
            raise _Writes
        for node in reversed(made):
            self.ops.erase_node(node)
        self.alike.restore(slots)
        return self._functional(n, args, operands)

    def _functional(self, n: Node, args: Any, operands: Operands) -> Any:
        """Like `_traced`, for a node that writes: traces it as functional ops."""
        with self._set_current_node(n), private.FunctionalTensorMode():
            last = self._last()
            values = private.Functional()
            held = [values.enter(tensor) for tensor in operands.tensors]
            wrapped = dict(zip(map(id, operands.tensors), held, strict=True))
            args, kwargs = pytree.tree_map(lambda x: wrapped.get(id(x), x), args)
            found = pytree.tree_map(values.leave, getattr(self, n.op)(n.target, args, kwargs))
            pairs = list(zip(operands.tensors, held, strict=True))
            written = [(x, values.leave(h)) for x, h in pairs if values.is_written(h)]
        if any(map(values.is_reshaped, held, operands.tensors)) or not all(
            map(_gives_only, _since(last))
        ):
            raise _Writes
        return found, written

    def _replace(self, written: Sequence[tuple[Any, Any]]) -> None:
        """Makes the nodes that follow read the new value of each written operand.

        Raises _Writes if the operand is an argument, if its strides change, or if another value
        views its memory.
        """
        for old, new in written:
            memory = memory_of(old)
            if memory in self.given or new.stride() != old.stride():
                raise _Writes
            for node, value in self.env.items():
                if any(p is not old and memory_of(p) == memory for p in leaves(value)):
                    raise _Writes  # a view would have to see the write
                self.env[node] = mapped(value, partial(_swapped, old, new))

    def _last(self) -> Node:
        return next(iter(reversed(self.ops.nodes)))


def _swapped(old: Any, new: Any, value: Any) -> Any:
    return new if value is old else value


def _since(last: Node) -> Iterator[Node]:
    """Yields the nodes of a graph that follow a node."""
    node = last.next
    while node.op != "root":
        yield node
        node = node.next


def _gives_only(node: Node) -> bool:
    """True if a node has no effect besides its results: it writes to nothing and draws nothing."""
    if node.op != "call_function":
        return True
    if not isinstance(node.target, OpOverload):
        return getattr(node.target, "__module__", "") == "_operator"
    return not private.is_written(node.target) and not private.has_effects(node.target)
