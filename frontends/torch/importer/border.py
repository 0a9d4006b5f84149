"""The border of a traced graph: aliases and memory layouts of its results.

A result is either a view (of an input, or of a value that several results share) or a fresh array.
Torch makes the views, by replaying the view ops in the trace. The compiled program computes the
fresh values, in the order of axes that torch would give them. A view of an input that was written
to is traced as a view of the new value, but is one of the input: AOTAutograd writes the value there
and only uses the layout of such a result (`Aliases`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from stack.frameworks.torch_private import memory_id
from stack.frontends.torch.tensors.random_ops import with_strides

Order = tuple[int, ...]


def example_of(node: Any) -> torch.Tensor | None:
    """Returns the strided tensor that torch traced for a node; None for other nodes."""
    value = node.meta.get("val") if isinstance(node, FxNode) else None
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value if is_strided else None


def storage_root(node: FxNode) -> FxNode:
    """Returns the node that allocated a value's memory: an input, or an op that is no view op."""
    *_, root = viewed_by(node)
    return root


def viewed_by(node: FxNode) -> Iterator[FxNode]:
    """Yields a node, its view source, the source's view source, and so on."""
    source: FxNode | None = node
    while source is not None:
        yield source
        source = _viewed(source) if source.op == "call_function" else None


def _viewed(node: FxNode) -> FxNode | None:
    """Returns the operand that a node's value is a view of, because it has the same storage.

    None if there is none.
    """
    value = example_of(node)
    if value is None:
        return None
    if node.target is operator.getitem:  # an op with several results, such as a split
        (node,) = node.all_input_nodes
    for operand in node.all_input_nodes:
        held = example_of(operand)
        if held is not None and _storage(held) == _storage(value):
            return operand
    return None


def _storage(value: torch.Tensor) -> int:
    return memory_id(value)


# ---- layouts


def physical_order(value: torch.Tensor) -> Order | None:
    """Returns the axes of a tensor from slowest to fastest; None if it is not dense."""
    strides = [size_hint(s) for s in value.stride()]
    sizes = [size_hint(s) for s in value.shape]
    rank = value.dim()
    if any(_equal(s, 0) for s in value.shape):
        return tuple(range(rank))
    # an axis of one element keeps its position: its stride has no meaning
    loose = [i for i in range(rank) if sizes[i] == 1]
    fixed = sorted((i for i in range(rank) if sizes[i] != 1), key=lambda i: -strides[i])
    for i in loose:
        fixed.insert(i, i)
    expected: Any = 1
    for i in reversed(fixed):
        if sizes[i] != 1 and not _equal(value.stride(i), expected):
            return None
        expected = expected * value.shape[i]
    return tuple(fixed)


def inverse(order: Order) -> Order:
    """Returns the inverse permutation."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def size_hint(size: Any) -> int:
    """Returns a size; for a symbol its value during tracing."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 2


def _bytes(value: torch.Tensor) -> int:
    return size_hint(value.numel()) * value.element_size()


def _equal(a: Any, b: Any) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b)


def _is_read_otherwise(value: torch.Tensor) -> bool:
    """True if reading the memory needs a conjugation or negation (lazy bits of torch)."""
    return value.is_conj() or value.is_neg()


# ---- results


Part = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, offset in elements


@dataclass(frozen=True)
class Place:
    """The memory of a result of a graph: an argument, a fresh value, or a view of one.

    Attributes:
        base: number of an argument of the graph; after the arguments, fresh values are counted.
        part: sizes, strides and offset of a view of the base; None for the base itself.
    """

    base: int
    part: Part | None


@dataclass(frozen=True)
class Aliases:
    """Results of a graph that are written to inputs or share their memory.

    Attributes:
        written: the inputs that the first results are the new values of.
        views: maps a result that is remade as a view to the input that it views.
    """

    written: Sequence[int] = ()
    views: Mapping[int, int] = field(default_factory=dict)


class Border:
    """The results of a graph, as fresh values and as views of arguments and fresh values.

    A fresh value is computed by the compiled program, in memory of its own.

    Attributes:
        fresh: the nodes that the compiled program computes, each once.
        orders: for each of them, its order of axes in memory (see `physical_order`).
        late: views that only results use; torch makes them after the program.
    """

    def __init__(self, graph: Graph, aliases: Aliases | None = None) -> None:
        self.outputs: list[Any] = list(graph.output_node().args[0])  # pyright: ignore
        self._inputs = {n: i for i, n in enumerate(graph.find_nodes(op="placeholder"))}
        self._of_inputs = self._remade(aliases or Aliases())
        remade = {place for _, places, _ in self._of_inputs for place in places}
        self._own = [o for place, o in enumerate(self.outputs) if place not in remade]
        self._roots = {o: self._source(o) for o in self._own if example_of(o) is not None}
        fresh = (r for r in self._roots.values() if r not in self._inputs)
        self.fresh = list(dict.fromkeys(fresh))
        self.orders = [physical_order(f.meta["val"]) for f in self.fresh]
        views = [o for o in self._own if isinstance(o, FxNode) and self._is_view(o)]
        self._views = list(dict.fromkeys(views))
        self._program = Replay(self._views, [*self._inputs, *self.fresh]) if views else None
        self.late: set[FxNode] = set()
        for node in reversed(graph.nodes):
            is_view = node.op == "call_function" and _viewed(node) is not None
            if is_view and node not in self.fresh:
                if all(user.op == "output" or user in self.late for user in node.users):
                    self.late.add(node)

    def _remade(self, aliases: Aliases) -> list[tuple[int, list[int], Replay]]:
        """Returns each written input that results view, with these results' numbers and a replay.

        The replay makes the views from the input's new value.
        """
        found: list[tuple[int, list[int], Replay]] = []
        for number, source in enumerate(aliases.written):
            value = self.outputs[number]
            views = (place for place, base in aliases.views.items() if base == source)
            places = [place for place in views if value in viewed_by(self.outputs[place])]
            if places:
                wanted = [self.outputs[place] for place in places]
                found.append((source, places, Replay(wanted, [*self._inputs, value])))
        return found

    def _source(self, output: FxNode) -> FxNode:
        """Returns the argument or fresh value whose memory an output shares, or the output itself.

        A view is itself a fresh value if no other output shares the rest of its memory.
        """
        root = storage_root(output)
        if root is output or root in self._inputs:
            return root
        whole, part = example_of(root), output.meta["val"]
        others = {o for o in self._own if example_of(o) is not None and o is not output}
        is_shared = any(storage_root(o) is root for o in others)
        if whole is None or (not is_shared and _bytes(part) < _bytes(whole)):
            return output  # only the part is computed: no other output shares the rest
        return root

    def _is_view(self, output: FxNode) -> bool:
        return output not in self._inputs and output not in self.fresh

    def places(self) -> list[Place] | None:
        """Returns each output's location; None if sizes and strides do not describe one."""
        known = [*self._inputs, *self.fresh]
        bases = {node: number for number, node in enumerate(known)}
        found = [self._place(output, bases) for output in self.outputs]
        return [p for p in found if p is not None] if None not in found else None

    def _place(self, output: Any, bases: Mapping[FxNode, int]) -> Place | None:
        root, value = self._roots.get(output), example_of(output)
        whole = example_of(root)
        if root is None or value is None or whole is None:
            return None
        number = bases[root]
        if output is root:
            return Place(number, None)
        if _is_read_otherwise(value) or _is_read_otherwise(whole):
            return None
        offset: Any = value.storage_offset() - whole.storage_offset()
        part = tuple(value.shape), tuple(value.stride()), offset
        is_known = all(type(n) is int for n in (*part[0], *part[1], offset))
        return Place(number, part) if is_known and value.dtype is whole.dtype else None

    def returned(self) -> list[int] | None:
        """Returns for each output the number of its fresh value; None if some output is not one."""
        places = {f: i for i, f in enumerate(self.fresh)}
        is_fresh = all(isinstance(o, FxNode) and o in places for o in self.outputs)
        return [places[o] for o in self.outputs] if is_fresh else None

    def unread(self) -> list[int]:
        """Returns the numbers of the arguments that `results` does not read; a call may free them.

        `results` makes the graph's results from its arguments and fresh values.
        """
        read = {self._inputs[o] for o in self.outputs if o in self._inputs}
        for program in (self._program, *(p for _, _, p in self._of_inputs)):
            read.update(() if program is None else program.places)
        read.update(source for source, _, _ in self._of_inputs)
        inputs = self._inputs.items()
        read.update(i for n, i in inputs if isinstance(n.meta.get("val"), torch.SymInt))
        return [i for i in self._inputs.values() if i not in read]

    def results(self, args: Sequence[Any], fresh: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the results of the graph for its arguments.

        Args:
            fresh: the values of `self.fresh`, each dense and in memory of its own, with its axes
                in the order of `self.orders`.
        """
        placed = zip(fresh, self.fresh, self.orders, strict=True)
        fresh = [self._laid_out(t, n.meta["val"], order, args) for t, n, order in placed]
        known: dict[Any, Any] = dict(zip(self.fresh, fresh, strict=True))
        if self._program is not None:
            made = self._program([*args, *fresh])
            known |= zip(self._views, made, strict=True)
        found = [self._value(o, args, known) for o in self.outputs]
        for source, places, program in self._of_inputs:
            for place, view in zip(places, program([*args, args[source]]), strict=True):
                found[place] = view
        return found

    def _laid_out(
        self, tensor: torch.Tensor, like: torch.Tensor, order: Order | None, args: Sequence[Any]
    ) -> torch.Tensor:
        if order is not None:
            is_row_major = order == tuple(range(len(order)))
            return tensor if is_row_major else tensor.permute(inverse(order))
        return with_strides(tensor, [self._number(s, args) for s in like.stride()])

    def _number(self, size: Any, args: Sequence[Any]) -> int:
        """Evaluates a size or stride, with the symbols' values from the graph's inputs."""
        if isinstance(size, int):
            return size
        values = [(n.meta.get("val"), args[i]) for n, i in self._inputs.items()]
        known = {v.node.expr: int(a) for v, a in values if isinstance(v, torch.SymInt)}
        return int(size.node.expr.xreplace(known))

    def _value(self, output: Any, args: Sequence[Any], known: dict[Any, Any]) -> Any:
        if not isinstance(output, FxNode):
            return output
        place = self._inputs.get(output)
        return known.get(output) if place is None else args[place]


class Replay:
    """Recomputes nodes of a graph (views and sizes) in torch from the values of other nodes.

    Args:
        wanted: the nodes to return.
        given: nodes whose values a call is given, in order; unneeded ones are ignored.
    """

    def __init__(self, wanted: Sequence[FxNode], given: Sequence[FxNode]) -> None:
        graph = Graph()
        places = {node: i for i, node in enumerate(given)}
        made: dict[FxNode, FxNode] = {}
        self.places: list[int] = []
        chain = _needed(wanted, places)
        for node in chain:
            if node in places:
                made[node] = graph.placeholder(f"given_{places[node]}")
                self.places.append(places[node])
        for node in chain:
            if node not in places:
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[n] for n in wanted))
        holder = wanted[0].graph.owning_module
        self._call: Callable[..., Any] = GraphModule(holder or torch.nn.Module(), graph).forward

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        return self._call(*[values[i] for i in self.places])


def _needed(wanted: Sequence[FxNode], given: dict[FxNode, int]) -> list[FxNode]:
    """Returns the nodes that the wanted ones depend on, in graph order."""
    found: set[FxNode] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in given:
                pending.extend(node.all_input_nodes)
    return [n for n in wanted[0].graph.nodes if n in found]
